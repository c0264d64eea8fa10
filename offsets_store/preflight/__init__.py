"""Would the promises of pgonce hold on this server?"""
