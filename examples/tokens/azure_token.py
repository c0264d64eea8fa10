"""The password of Azure Database for PostgreSQL: a token for the identity that DefaultAzureCredential finds."""

import functools

from azure.identity import DefaultAzureCredential

credential = functools.lru_cache(DefaultAzureCredential)  # it keeps a token until shortly before it expires


def password(login):
    if login.refused:
        credential.cache_clear()
    found = [cloud for cloud in ("chinacloudapi.cn", "usgovcloudapi.net") if login.host.lower().endswith(f".{cloud}")]
    cloud = found[0] if found else "windows.net"
    return credential().get_token(f"https://ossrdbms-aad.database.{cloud}/.default").token
