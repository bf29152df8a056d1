"""--log-config-file: the user's configuration of the logs, in the form of logging.config.dictConfig."""

import json
import logging.config
from pathlib import Path
from typing import Any

from kvasir.config.options import ConfigError
from kvasir_contract.logs import record_origins


def apply_log_config(file: str) -> None:
    """Configure the logs of this process. Loggers that the file does not name stay. Raises ConfigError."""
    config = {"disable_existing_loggers": False, **_read(file)}
    record_origins(True)  # its formats may have them
    try:
        logging.config.dictConfig(config)
    except (ValueError, TypeError, AttributeError, ImportError) as error:
        cause = f": {error.__cause__}" if error.__cause__ else ""
        raise ConfigError(f"--log-config-file {file}: {error}{cause}") from None


def _read(file: str) -> dict[str, Any]:
    import yaml  # needs 20 ms, and few use this option

    try:
        text = Path(file).read_text(encoding="utf-8")
        config = json.loads(text) if file.endswith(".json") else yaml.safe_load(text)
    except OSError as error:
        raise ConfigError(f"--log-config-file {file}: {error.strerror}") from error
    except (ValueError, yaml.YAMLError) as error:
        kind = "JSON" if file.endswith(".json") else "YAML"
        raise ConfigError(f"--log-config-file {file} is not {kind}: {error}") from None
    if not isinstance(config, dict):
        raise ConfigError(f"--log-config-file {file} is not an object, as logging.config.dictConfig takes it")
    return config
