#!/usr/bin/env python3
"""Send and read mail with Python's standard library.

    mail.py send BOX [KEY [DEDUPE]]     send standard input, print the id of the mail
    mail.py lease BOX [WAIT]            print LEASE and ATTEMPT on a line, then the body; nothing if there is no mail
    mail.py ack BOX LEASE               the mail is done
    mail.py nack BOX LEASE [REASON]     the mail failed: it is delivered again

The socket of the node is $BALEFIRE_SOCKET; "balefire-node config path" prints it. What is
refused is printed in the node's words, and the exit code is 1. In a program:

    node = Node()
    for given in node.lease("desk", most=10, wait="10m"):
        handle(given["mail"], body(given))
        node.ack("desk", given["lease"])
"""

import base64
import contextlib
import http.client
import json
import os
import socket
import sys
import urllib.parse

SOCKET = os.environ.get("BALEFIRE_SOCKET", "/run/balefire/node.sock")


class Refused(Exception):
    """The node did not do what it was asked for. The text is the node's."""


class Connection(http.client.HTTPConnection):
    """HTTP over a unix socket."""

    def __init__(self, path):
        super().__init__("node")
        self.path = path

    def connect(self):
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.connect(self.path)


class Node:
    """The node of this machine. Each call has its own connection, so that threads may share one."""

    def __init__(self, path=SOCKET):
        self.path = path

    def send(self, box, content, **headers):
        """Return the id of a mail when it is on disk.

        After an error other than Refused nobody knows whether it is: send it again with
        the same dedupe="…", and it is the same mail. Other headers are key, class, type,
        labels …: GET /openapi.json has all of them.
        """
        text = base64.b64encode(content).decode()
        return self.call("/v1/mail", {"to": box, "body": text, **headers})["id"]

    def lease(self, box, most=1, wait=None):
        """Return at most so many mails, or none at the end of the wait, which is at most 10m.

        Each is delivered again unless it is acknowledged before its lease ends.
        """
        document = {"max": most, "wait": wait} if wait else {"max": most}
        return self.call(path(box, "lease"), document)["items"]

    def ack(self, box, lease):
        """Say that a mail is done. To say it again after a lost answer does no harm."""
        self.settle(box, {"ack": [lease]})

    def nack(self, box, lease, reason=""):
        """Say that a mail failed: it is delivered again, and after its last attempt a dead letter."""
        self.settle(box, {"nack": [{"lease": lease, "reason": reason[:256]}]})

    def settle(self, box, document):
        for item in self.call(path(box, "settle"), document)["items"]:
            if item["code"] != "OK":  # STALE: somebody else was given the mail since, or it has ended
                raise Refused(f"{item['code']}: lease {item['lease']}")

    def call(self, path, document):
        with contextlib.closing(Connection(self.path)) as c:
            try:
                c.request("POST", path, json.dumps(document), {"Content-Type": "application/json"})
            except BrokenPipeError:
                pass  # refused before all of it was read: the answer says why
            return answer(c.getresponse())


def path(box, verb):
    return f"/v1/mailboxes/{urllib.parse.quote(box, safe='')}/{verb}"


def answer(response):
    """Return the document of a response. Every error is a document, too."""
    document = json.load(response)
    if response.status >= 400:
        raise Refused(f"{document['code']}: {document['detail']}")
    return document


def body(given):
    """Return the body of a mail that was leased."""
    return base64.b64decode(given["mail"].get("body", ""))


def usage(text):
    print(text, file=sys.stderr)
    sys.exit(2)


def main(verb, box, *args):
    node = Node()
    if verb == "send" and len(args) <= 2:
        print(node.send(box, sys.stdin.buffer.read(), **dict(zip(("key", "dedupe"), args))))
    elif verb == "lease" and len(args) <= 1:
        for given in node.lease(box, 1, *args):
            print(given["lease"], given["attempt"], flush=True)
            sys.stdout.buffer.write(body(given))
    elif verb == "ack" and len(args) == 1:
        node.ack(box, *args)
    elif verb == "nack" and 1 <= len(args) <= 2:
        node.nack(box, *args)
    else:
        usage(__doc__)


if __name__ == "__main__":
    if len(sys.argv) < 3:
        usage(__doc__)
    try:
        main(*sys.argv[1:])
    except Refused as e:
        sys.exit(str(e))
    except OSError as e:
        sys.exit(f"{SOCKET}: {e}")
