"""The password of RDS and Aurora: a token that is signed with the credentials that boto3 finds."""

import functools
import os
import re

import boto3


@functools.lru_cache  # making a client takes longer than a commit
def client(region):
    return boto3.session.Session(region_name=region).client("rds")


def password(login):
    if login.refused:
        client.cache_clear()
    found = re.search(r"\.([a-z0-9-]+)\.rds\.amazonaws\.com", login.host, re.IGNORECASE)
    rds = client(found[1].lower() if found else os.environ.get("AWS_REGION"))
    return rds.generate_db_auth_token(login.host, login.port, login.user)
