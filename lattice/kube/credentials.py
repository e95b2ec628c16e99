"""Makes TLS context and Authorization header from a configuration, and again when its files change."""

from __future__ import annotations

import base64
import os
import ssl
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from lattice.errors import Denied, LatticeError, Rejected
from lattice.kube.kubeconfig import ClusterConfig, load

CHECK_SECONDS = 1.0
PLUGIN_SECONDS = 300.0

Header = tuple[str, str]


class ClientIdentity(NamedTuple):
    """The credentials of a request: the TLS context (None: plain HTTP) and the headers that name the caller."""

    tls: ssl.SSLContext | None
    headers: tuple[Header, ...]


class Credentials:
    """The identity of one configuration; a change of any of its files takes effect within a second."""

    def __init__(
        self, config: ClusterConfig, monotonic: Callable[[], float] = time.monotonic, now: Callable[[], float] = time.time
    ) -> None:
        self.config = config
        self._monotonic = monotonic
        self._now = now
        self._marks = _marks(config.files)
        self._checked = self._made = monotonic()
        self._identity = _identity(config)

    def identity(self) -> ClientIdentity:
        """Returns the identity now, read again where its files have changed (looked at once a second) or, every 5 minutes, from its plugin;
        where that fails, the former one, with a warning in the log.
        """
        now = self._monotonic()
        if now - self._checked >= CHECK_SECONDS:
            self._checked = now
            marks = _marks(self.config.files)
            stale_plugin = self.config.plugin is not None and now - self._made >= PLUGIN_SECONDS
            if marks != self._marks or stale_plugin:
                self._renew(now)
        return self._identity

    def refused(self) -> bool:
        """Reads the credentials again after a 401; returns whether others were read, to be tried.

        False: the files are the same or unreadable, or the plugin was asked less than a second ago.
        """
        now = self._monotonic()
        if self.config.plugin is None and _marks(self.config.files) == self._marks:
            return False
        if self.config.plugin is not None and now - self._made < CHECK_SECONDS:
            return False
        return self._renew(now)

    def explained(self, error: Denied) -> Denied:
        """Returns a refusal as Unauthorized with its cause where that can be seen here: an expired client certificate; else as it is."""
        if error.reason != "Unauthorized":
            return error
        said = _expiry(self.config, self._now())
        return Denied(f"{error.message}: {said}", reason=error.reason) if said else error

    def _renew(self, now: float) -> bool:
        """Makes TLS context and headers anew from the configuration as its files are now, and returns True.

        On an error it logs a warning, keeps the present ones, and returns False.
        """
        marks = _marks(self.config.files)
        try:
            config = load(self.config.source, self.config.context or None) if self.config.source else self.config
            self._identity = _identity(config)
        except LatticeError as error:
            import logging  # one-shot commands renew nothing, and should not wait for it

            logging.getLogger(__name__).warning("CredentialsNotRenewed: %s", error.message)
            return False
        self.config, self._marks, self._made = config, marks, now
        return True


def _expiry(config: ClusterConfig, now: float) -> str:
    """Returns a clause on an expired client certificate; empty: it is valid, absent, or cannot be read."""
    pem, name = config.cert_data, f"in {config.source}" if config.source else ""
    if config.cert_file:
        name = config.cert_file
        try:
            pem = Path(config.cert_file).read_bytes()
        except OSError:
            return ""
    from lattice.kube.certificates import not_after  # only a refusal needs them
    from lattice.units import format_time

    end = not_after(pem)
    if end is None or end > now:
        return ""
    return " ".join(("the client certificate", name, f"expired at {format_time(end)}")).replace("  ", " ")


def _marks(files: tuple[str, ...]) -> tuple[tuple[int, int, int], ...]:
    """Returns a mark for each file by which its change is seen."""
    marks = []
    for path in files:
        try:
            stat = os.stat(path)  # noqa: PTH116 - once a second and file: the cheap call
        except OSError:
            marks.append((0, 0, 0))
        else:
            marks.append((stat.st_mtime_ns, stat.st_size, stat.st_ino))
    return tuple(marks)


def _identity(config: ClusterConfig) -> ClientIdentity:
    """Returns TLS context and headers of a configuration; it asks the auth plugin, else takes token file, token, or user name and password,
    in this order.

    Raises Denied or Rejected where these cannot be used.
    """
    headers = list(config.headers)
    if config.plugin is not None:
        given = config.plugin()
        config = config._replace(cert_file=given.cert_file or config.cert_file, key_file=given.key_file or config.key_file)
        if given.authorization:
            headers.append(("Authorization", given.authorization))
    elif config.token_file:
        headers.append(("Authorization", "Bearer " + _token(config.token_file)))
    elif config.token:
        headers.append(("Authorization", "Bearer " + config.token))
    elif config.username:
        pair = base64.b64encode(f"{config.username}:{config.password}".encode()).decode("ascii")
        headers.append(("Authorization", "Basic " + pair))
    return ClientIdentity(_tls(config), tuple(headers))


def _token(path: str) -> str:
    """Returns the text of a token file, without blanks around it. Raises Denied where it cannot be read."""
    try:
        return Path(path).read_text(encoding="ascii").strip()
    except (OSError, ValueError) as error:
        raise Denied(f"the token file {path} cannot be read: {error}", reason="TokenUnreadable") from error


def _tls(config: ClusterConfig) -> ssl.SSLContext | None:
    """Returns the TLS context for a server, with the certificates of the configuration; None for http://. With `insecure` it checks no
    server's certificate.

    Raises Rejected for another address, Denied for certificates that cannot be used.
    """
    if config.server.startswith("http://"):
        return None
    if not config.server.startswith("https://"):
        raise Rejected(f"the server {config.server!r} is no http:// or https:// address", reason="KubeconfigWrong")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    if config.insecure:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    try:
        _trust(context, config)
        _present(context, config)
    except (OSError, ValueError) as error:  # ssl.SSLError is an OSError
        named = (config.ca_file, config.cert_file, config.key_file)
        absent = list(dict.fromkeys(path for path in named if path and not Path(path).exists()))
        why = f"there is no file {', '.join(absent)}" if absent else error
        raise Denied(f"the certificates for {config.server} cannot be used: {why}", reason="CertificateUnusable") from error
    return context


def _trust(context: ssl.SSLContext, config: ClusterConfig) -> None:
    """Loads the certificates that the server is checked with: those given, else the system's own; none where the connection is insecure."""
    if config.ca_data:
        context.load_verify_locations(cadata=config.ca_data.decode("ascii"))
    elif config.ca_file:
        context.load_verify_locations(cafile=config.ca_file)
    elif not config.insecure:
        context.load_default_certs()


def _present(context: ssl.SSLContext, config: ClusterConfig) -> None:
    """Loads the client certificate; OpenSSL reads bytes of a kubeconfig from a private file that lives only meanwhile."""
    if not (config.cert_file or config.cert_data):
        return
    with _as_file(config.cert_data, config.cert_file) as certificate, _as_file(config.key_data, config.key_file) as key:
        context.load_cert_chain(certificate, key or None)


@contextmanager
def _as_file(data: bytes, path: str) -> Generator[str, None, None]:
    """Gives the path of a file with these bytes, in memory where the system can; without bytes the path that is given."""
    if not data:
        yield path
    elif hasattr(os, "memfd_create") and os.access("/proc/self/fd", os.X_OK):
        with os.fdopen(os.memfd_create("lattice"), "wb") as file:
            file.write(data)
            file.flush()
            yield f"/proc/self/fd/{file.fileno()}"
    else:
        import tempfile

        with tempfile.NamedTemporaryFile(prefix="lattice-") as named:
            named.write(data)
            named.flush()
            yield named.name
