"""Settings of TLS: certificates of a frontend's HTTP server and of its clients."""

from dataclasses import dataclass

from kvasir.config.options import ConfigError, option
from kvasir.config.parsers import parse_int


@dataclass(frozen=True)
class TlsConfig:
    ssl_certfile: str | None = option(
        None,
        "certificate of the server, with those of its issuers, as PEM; serves https [default: http]",
        metavar="FILE",
        never_blank=True,
    )
    ssl_keyfile: str | None = option(
        None,
        "private key of the certificate, as PEM [default: in --ssl-certfile]",
        metavar="FILE",
        never_blank=True,
    )
    ssl_ca_certs: str | None = option(
        None, "certificates that client certificates are checked with, as PEM", metavar="FILE", never_blank=True
    )
    ssl_cert_reqs: int = option(
        0, "client certificates: 0 not asked for, 1 checked if sent, 2 required", parse=parse_int(0, 2)
    )
    ssl_ciphers: str | None = option(
        None, "ciphers of TLS 1.2, as OpenSSL writes them [default: Python's]", metavar="CIPHERS", never_blank=True
    )
    enable_ssl_refresh: bool = option(False, "take over the files of the --ssl options when they change")

    def __post_init__(self) -> None:
        if self.ssl_certfile is None:
            for name in ("ssl_keyfile", "ssl_ca_certs", "ssl_cert_reqs", "ssl_ciphers", "enable_ssl_refresh"):
                if getattr(self, name):
                    raise ConfigError(
                        f"--{name.replace('_', '-')} has no effect without --ssl-certfile: name the certificate"
                    )
        if self.ssl_cert_reqs and self.ssl_ca_certs is None:
            raise ConfigError(
                f"--ssl-cert-reqs {self.ssl_cert_reqs} without --ssl-ca-certs: no client certificate could be "
                "accepted; name the file of its issuer's certificate"
            )
        if self.ssl_ca_certs is not None and not self.ssl_cert_reqs:
            raise ConfigError(
                "--ssl-ca-certs has no effect with --ssl-cert-reqs 0, the default: give 2 to require client "
                "certificates"
            )
