"""Where the PostgreSQL server of a store is, and how this node uses it."""

from __future__ import annotations

import re
from urllib.parse import unquote

import attrs
from psycopg import conninfo
from psycopg.errors import Error

SCHEMES = ("postgresql://", "postgres://")

_CREDENTIALS = re.compile(r"^(?P<scheme>[a-z]+://)(?P<user>[^:/@]*):(?P<password>[^/@]*)@")
_SECRET_OPTION = re.compile(r"(?P<before>[?&])(?P<name>password|sslpassword)=(?P<value>[^&]*)&?")
_SHARED_BY_ALL: dict[str, str | int] = {
    "client_encoding": "UTF8",
    "keepalives": 1,
    "keepalives_idle": 10,
    "keepalives_interval": 3,
    "keepalives_count": 3,
    "tcp_user_timeout": 10_000,
    "gssencmode": "disable",  # looking for Kerberos tickets blocks the loop
}


def without_secrets(url: str) -> str:
    """Return the URL as it may be shown: without passwords."""
    url = _CREDENTIALS.sub(lambda found: f"{found['scheme']}{found['user']}@", url)
    while True:
        shorter = _SECRET_OPTION.sub(lambda found: found["before"], url, count=1)
        if shorter == url:
            return url
        url = shorter.rstrip("?&")


@attrs.frozen
class PostgresqlSettings:
    """How a node reaches its store on PostgreSQL.

    `url` is a libpq connection URI (sslmode, sslrootcert and several hosts are told in it); a password in it is taken,
    and never shown.  `readers` bounds the connections that read; one more writes, one renews the lease, one listens.  A
    node whose lease of `lease_ms` milliseconds runs out has lost its operations to the others.  Raises ValueError.
    """

    url: str = attrs.field(repr=lambda url: repr(without_secrets(url)))
    password: str | None = attrs.field(default=None, repr=False)
    readers: int = attrs.field(default=4, validator=attrs.validators.ge(1))
    lease_ms: int = attrs.field(default=1200, validator=attrs.validators.ge(100))
    connect_timeout_s: int = attrs.field(default=5, validator=attrs.validators.ge(1))
    statement_timeout_s: int = attrs.field(default=15, validator=attrs.validators.ge(1))

    def __attrs_post_init__(self) -> None:
        if not self.url.startswith(SCHEMES):
            raise ValueError("a PostgreSQL URL begins with postgresql://")
        try:
            conninfo.conninfo_to_dict(self.url)
        except Error as error:
            secret = self._password_of_url
            words = str(error).strip()
            if secret is not None and (secret in words or unquote(secret) in words):
                words = "its user, password or host is not percent-encoded"
            raise ValueError(f"not a PostgreSQL URL: {words}") from None

    @property
    def shown(self) -> str:
        """The URL without passwords."""
        return without_secrets(self.url)

    @property
    def place(self) -> str:
        """Host and port, or the directory of the socket, as an operator looks for it."""
        members = conninfo.conninfo_to_dict(self.url)
        hosts = str(members.get("host") or members.get("hostaddr") or "localhost").split(",")
        ports = str(members.get("port") or 5432).split(",")
        ports = ports * len(hosts) if len(ports) == 1 else ports
        return ", ".join(f"{host}:{port}" for host, port in zip(hosts, ports, strict=False))

    def members(self, *, server: dict[str, str | int], **extra: str | int) -> dict[str, str | int]:
        """The members of a libpq connection string.

        `server` are settings of the session (name to value), `extra` further members; what the URL says of keepalives
        and the like stands.
        """
        members: dict[str, str | int] = {
            name: value for name, value in conninfo.conninfo_to_dict(self.url).items() if value is not None
        }
        if self.password is not None:
            members["password"] = self.password
        options = " ".join(f"-c {name}={str(value).replace(' ', chr(92) + ' ')}" for name, value in server.items())
        given = str(members.get("options", ""))
        return {**_SHARED_BY_ALL, **members, **extra, "options": f"{given} {options}".strip()}

    @property
    def _password_of_url(self) -> str | None:
        found = _CREDENTIALS.match(self.url) or _SECRET_OPTION.search(self.url)
        return None if found is None else found.groupdict().get("password") or found.groupdict().get("value")
