"""Where do passwords come from that are made anew for each connection?"""
