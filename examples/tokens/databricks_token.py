"""The password of Lakebase: a token for the identity with which databricks-sdk logs in to the workspace."""

import functools
import os

from databricks.sdk import WorkspaceClient

workspace = functools.lru_cache(WorkspaceClient)


def password(login):
    if login.refused:
        workspace.cache_clear()
    endpoint = os.environ.get("LAKEBASE_ENDPOINT")
    if endpoint:
        return workspace().postgres.generate_database_credential(endpoint=endpoint).token
    uid = login.host.lower().partition(".")[0].removeprefix("instance-").removeprefix("ro-")
    instance = workspace().database.find_database_instance_by_uid(uid=uid)
    return workspace().database.generate_database_credential(instance_names=[instance.name]).token
