"""Where do rows wait that are too many for a commit message?"""
