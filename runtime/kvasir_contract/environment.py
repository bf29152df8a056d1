"""Environment variables, key files and directories of a pod template."""

from typing import Final

PREFIX: Final = "KVASIR_"  # --max-num-seqs is KVASIR_MAX_NUM_SEQS

LINK: Final = "KVASIR_LINK"
LINK_KEYS: Final = "KVASIR_LINK_KEYS"
SERVICE_UID: Final = "KVASIR_SERVICE_UID"
DATA_PARALLEL_RANK: Final = "KVASIR_DATA_PARALLEL_RANK"
DATA_PARALLEL_SIZE_LOCAL: Final = "KVASIR_DATA_PARALLEL_SIZE_LOCAL"
# Replaces the rank if an engine has several pods (--nnodes): node n of rank r is pod r·nnodes + n.
POD_INDEX: Final = "KVASIR_POD_INDEX"
POD_IP: Final = "KVASIR_POD_IP"
BLACK_BOX: Final = "KVASIR_BLACK_BOX"
OPS_HOST: Final = "KVASIR_OPS_HOST"
OPS_PORT: Final = "KVASIR_OPS_PORT"
HOST: Final = "KVASIR_HOST"
PORT: Final = "KVASIR_PORT"
FD: Final = "KVASIR_FD"
SHUTDOWN_DELAY: Final = "KVASIR_SHUTDOWN_DELAY"
API_KEY_DIR: Final = "KVASIR_API_KEY_DIR"
ADMIN_API_KEY_DIR: Final = "KVASIR_ADMIN_API_KEY_DIR"
LORA_MODULES_FILE: Final = "KVASIR_LORA_MODULES_FILE"
# Comma-separated KVASIR_ variables of the template. Others are rejected: envFrom could bypass the schema.
MANAGED_VARIABLES: Final = "KVASIR_MANAGED_VARIABLES"

LINK_KEYS_DIRECTORY: Final = "/etc/kvasir/link"
API_KEYS_DIRECTORY: Final = "/etc/kvasir/api-keys"
ADMIN_API_KEYS_DIRECTORY: Final = "/etc/kvasir/admin-api-keys"
ADAPTERS_DIRECTORY: Final = "/etc/kvasir/adapters"
ADAPTERS_FILE: Final = "adapters.json"  # a list of objects with name and source
CACHE_DIRECTORY: Final = "/var/cache/kvasir"
MODEL_DIRECTORY: Final = CACHE_DIRECTORY + "/model"  # the volume of a pvc:// model
SCRATCH_DIRECTORY: Final = "/tmp"
BLACK_BOX_FILE: Final = SCRATCH_DIRECTORY + "/kvasir-black-box"  # in a volume, which survives containers
SHM_DIRECTORY: Final = "/dev/shm"
# volumeMounts must not use these
RESERVED_DIRECTORIES: Final = (
    LINK_KEYS_DIRECTORY,
    API_KEYS_DIRECTORY,
    ADMIN_API_KEYS_DIRECTORY,
    ADAPTERS_DIRECTORY,
    CACHE_DIRECTORY,
    SCRATCH_DIRECTORY,
    SHM_DIRECTORY,
)

SERVER_SECRET: Final = "server.secret"
SERVER_PUBLIC: Final = "server.public"
CLIENT_SECRET: Final = "client.secret"
CLIENT_PUBLIC: Final = "client.public"
FRONTEND_KEY_FILES: Final = (SERVER_SECRET, CLIENT_PUBLIC)
ENGINE_KEY_FILES: Final = (CLIENT_SECRET, SERVER_PUBLIC)
# Two CURVE key pairs in Z85. The frontends are the servers.
KEY_FILES: Final = (SERVER_SECRET, SERVER_PUBLIC, CLIENT_SECRET, CLIENT_PUBLIC)
