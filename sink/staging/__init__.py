"""Where do rows wait if they are too many for a commit message?"""
