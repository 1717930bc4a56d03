"""Takes orders: each is a row in `orders` and a receipt row, in one transaction of psycopg or sqlite3.

Every connection has a process of its own, so that a test can kill or stop one execution and leave the others alone. A request
with `x-talk` is led by the test, over the socket in ORDERS_CONTROL: the handler says where it is, and waits for a word. A proxy
marks the second delivery of a request with `x-delivery`. A request with `x-gives-up` is answered 500 where its transaction
could be tried again.

    orders.py PORT    with the database in ORDERS_DATABASE: postgres://... or sqlite:PATH
"""

import http.server
import json
import os
import signal
import socket
import socketserver
import sqlite3
import sys
import threading

import psycopg

DATABASE = os.environ["ORDERS_DATABASE"]
HEADERS = [["content-type", "application/json"], ["x-answer-of", "receipt"]]
# Longer than any test holds the database.
PATIENCE_SECONDS = 100


class Refused(Exception):
    """The test wants this status for an answer."""


class Talk:
    """What the handler and the test tell each other about one request."""

    def __init__(self, headers):
        self.stream = None
        if headers["x-talk"]:
            host, port = os.environ["ORDERS_CONTROL"].split(":")
            self.stream = socket.create_connection((host, int(port))).makefile("rw")
            self.tell(f"{headers['idempotency-key']}{headers['x-delivery'] or ''} {os.getpid()}")

    def tell(self, line):
        if self.stream:
            print(line, file=self.stream, flush=True)

    def at(self, point):
        """Waits for a word: `go`, `die`, `die-in-commit SECONDS`, `forget`, or a status."""
        if not self.stream:
            return ["go"]
        self.tell(point)
        word = self.stream.readline().split()
        # The test has ended.
        if not word or word[0] == "die":
            die()
        if word[0].isdigit():
            raise Refused(int(word[0]))
        return word


def die():
    os.kill(os.getpid(), signal.SIGKILL)


class Postgres:
    placeholder = "%s"
    receipt = "SELECT onceward_complete(%s, %s, %s, %s, %s)"

    def __init__(self):
        self.connection = psycopg.connect(DATABASE, autocommit=True)

    def begin(self, isolation):
        self.connection.execute(f"BEGIN ISOLATION LEVEL {isolation or 'READ COMMITTED'}")
        # The snapshot of the stricter levels is made by the first query.
        self.connection.execute("SELECT count(*) FROM orders")

    def execute(self, sql, values=()):
        self.connection.execute(sql, values)

    def commit_and_die(self, _seconds):
        self.connection.pgconn.send_query(b"COMMIT")
        self.connection.pgconn.flush()
        die()

    def roll_back(self):
        self.connection.rollback()


class Sqlite:
    placeholder = "?"
    receipt = "INSERT INTO onceward_complete (operation, fence, status, headers, body) VALUES (?, ?, ?, ?, ?)"

    def __init__(self):
        path = DATABASE.removeprefix("sqlite:")
        self.connection = sqlite3.connect(path, timeout=PATIENCE_SECONDS, isolation_level=None)

    def begin(self, _isolation):
        self.connection.execute("BEGIN")

    def execute(self, sql, values=()):
        self.connection.execute(sql, values)

    def commit_and_die(self, seconds):
        threading.Timer(seconds, die).start()
        self.connection.execute("COMMIT")
        threading.Event().wait()

    def roll_back(self):
        # An error of the receipt has rolled it back already.
        if self.connection.in_transaction:
            self.connection.execute("ROLLBACK")


def take_order(headers, talk):
    """Returns the body of the answer, once the order is committed."""
    key, operation, fence = (headers[name] for name in ("idempotency-key", "onceward-operation", "onceward-fence"))
    database = Postgres() if DATABASE.startswith("postgres") else Sqlite()
    body = json.dumps({"ordered": key}).encode()
    try:
        database.begin(headers["x-isolation"])
        talk.at("begun")
        mark = database.placeholder
        database.execute(f"INSERT INTO orders (key, operation) VALUES ({mark}, {mark})", (key, operation))
        if talk.at("ordered")[0] != "forget" and not headers["x-forget"]:
            database.execute(database.receipt, (operation, int(fence), 201, json.dumps(HEADERS), body))
        word = talk.at("written")
        if word[0] == "die-in-commit":
            database.commit_and_die(float(word[1]))
        database.execute("COMMIT")
    except Exception:
        database.roll_back()
        raise
    talk.at("committed")
    return body


def order(headers, talk):
    """The status and the body of the answer."""
    # What programs under these levels do: the transaction is tried again from its beginning.
    while True:
        try:
            body = take_order(headers, talk)
            talk.tell("ended committed")
            return 201, body
        except psycopg.errors.SerializationFailure as error:
            if headers["x-gives-up"]:
                talk.tell(f"ended {error.sqlstate}")
                return 500, json.dumps({"error": error.sqlstate}).encode()
            talk.tell("again")
        except Refused as refused:
            talk.tell("ended refused")
            return refused.args[0], b'{"error":"refused"}'
        except Exception as error:
            code = getattr(error, "sqlstate", None) or str(error).split(":")[0]
            talk.tell(f"ended {code}")
            return 500, json.dumps({"error": code}).encode()


class Handler(http.server.BaseHTTPRequestHandler):
    def do_POST(self):
        self.rfile.read(int(self.headers["content-length"] or 0))
        talk = Talk(self.headers)
        status, body = order(self.headers, talk)
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


class Server(socketserver.ForkingMixIn, http.server.HTTPServer):
    max_children = 1000
    request_queue_size = 128

    def handle_error(self, request, address):
        """The gateway may have closed the connection."""


def end_with_the_test(server):
    """Children that a test has stopped would never end by themselves."""
    sys.stdin.readline()
    for child in list(server.active_children or ()):
        try:
            os.kill(child, signal.SIGKILL)
        except ProcessLookupError:
            pass
    os._exit(0)


if __name__ == "__main__":
    server = Server(("127.0.0.1", int(sys.argv[1])), Handler)
    threading.Thread(target=end_with_the_test, args=(server,), daemon=True).start()
    print(f"orders at 127.0.0.1:{server.server_port}", flush=True)
    server.serve_forever()
