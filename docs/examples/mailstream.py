#!/usr/bin/env python3
"""Send and read mail over the WebSocket of a node with Python's standard library.

    mailstream.py send BOX [KEY]     send each line of standard input, all in one message
    mailstream.py read BOX COUNT     print and acknowledge so many mails, each on a line

One connection carries any number of mails both ways: see docs/protocol.md for its documents.
"""

import base64
import hashlib
import json
import os
import struct
import sys

import mail

TEXT, CLOSE, PING, PONG = 1, 8, 9, 10  # opcodes of RFC 6455


class Stream:
    """A WebSocket with a JSON document in each message."""

    def __init__(self, path=mail.SOCKET):
        key = base64.b64encode(os.urandom(16)).decode()
        self.http = mail.Connection(path)
        self.http.request("GET", "/v1/mail/stream", headers={
            "Connection": "Upgrade", "Upgrade": "websocket", "Sec-WebSocket-Version": "13",
            "Sec-WebSocket-Key": key, "Sec-WebSocket-Protocol": "balefire.mail.v1+json"})
        response = self.http.getresponse()
        if response.status != 101:
            mail.answer(response)
        proof = hashlib.sha1((key + "258EAFA5-E914-47DA-95CA-C5AB0DC85B11").encode()).digest()
        if response.headers["Sec-WebSocket-Accept"] != base64.b64encode(proof).decode():
            raise ConnectionError("the other side is no WebSocket")
        self.file = self.http.sock.makefile("rb")  # the node says nothing before it is asked

    def tell(self, **document):
        self.write(TEXT, json.dumps(document).encode())

    def hear(self):
        """Return the next document of the node."""
        message, last = b"", False
        while not last:
            head, size = self.read(2)
            if size >= 126:
                size = int.from_bytes(self.read(2 if size == 126 else 8), "big")
            data, op, last = self.read(size), head & 15, head >= 128
            if op == CLOSE:
                raise mail.Refused(f"closed with {int.from_bytes(data[:2], 'big')}: {data[2:].decode()}")
            if op == PING:
                self.write(PONG, data)
            if op >= CLOSE:
                last = False  # it may stand between the parts of a message
            else:
                message += data
        return json.loads(message)

    def close(self):
        """Say goodbye: what was leased and not settled is delivered again, for nothing."""
        self.write(CLOSE, struct.pack(">H", 1000))
        self.file.read()  # to the end: the node closes, too
        self.http.close()

    def read(self, size):
        data = self.file.read(size)
        if len(data) < size:
            raise ConnectionError("the node has closed the connection")
        return data

    def write(self, op, data):
        size, mask = len(data), os.urandom(4)
        if size < 126:
            length = struct.pack(">B", 128 | size)
        else:
            length = struct.pack(">BH", 254, size) if size < 1 << 16 else struct.pack(">BQ", 255, size)
        masked = bytes(b ^ mask[i % 4] for i, b in enumerate(data))
        self.http.sock.sendall(bytes([128 | op]) + length + mask + masked)


def send(stream, box, lines, key=""):
    """Send mails and return their ids. With a key they are delivered in this order, one by one."""
    stream.tell(op="send", ref=1, mails=[{"to": box, "key": key, "text": line} for line in lines])
    results = stream.hear()["results"]
    for r in results:
        if "problem" in r:  # of this mail: the others are on disk
            raise mail.Refused(f"{r['problem']['code']}: {r['problem']['detail']}")
    return [r["id"] for r in results]


def read(stream, box, count, handle):
    """Handle and acknowledge mails. At most credit of them are leased to this session at once."""
    stream.tell(op="read", session=1, box=box, credit=min(count, 256))
    unsettled = 0  # requests whose answer is missing; mail comes between answers
    while count or unsettled:
        got = stream.hear()
        if got.get("code"):
            raise mail.Refused(f"{got['code']}: {got['detail']}")
        if got.get("stale"):
            raise mail.Refused(f"{got['stale'][0]['code']}: lease {got['stale'][0]['lease']}")
        if got["op"] == "settled":
            unsettled -= 1
        mails = got.get("mails", [])[:count]
        for given in mails:
            handle(given)
        if mails:
            stream.tell(op="settle", session=1, ref=1, ack=[given["lease"] for given in mails])
            count, unsettled = count - len(mails), unsettled + 1


def main(verb, box, *args):
    stream = Stream()
    if verb == "send" and len(args) <= 1:
        print("\n".join(send(stream, box, sys.stdin.read().splitlines(), *args)))
    elif verb == "read" and len(args) == 1:
        read(stream, box, int(args[0]), lambda given: print(mail.body(given).decode()))
    else:
        mail.usage(__doc__)
    stream.close()


if __name__ == "__main__":
    if len(sys.argv) < 3:
        mail.usage(__doc__)
    try:
        main(*sys.argv[1:])
    except mail.Refused as e:
        sys.exit(str(e))
    except OSError as e:
        sys.exit(f"{mail.SOCKET}: {e}")
