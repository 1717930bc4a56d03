"""The API of asgi.py as a Flask application, with a path that ends with a slash."""

from flask import Flask, request

import ledger

app = Flask(__name__)


@app.post("/charges")
def charge():
    key = request.headers.get("idempotency-key", "-")
    ledger.write(key)
    if request.headers.get("x-wait-for"):
        ledger.wait_for(request.headers["x-wait-for"])
    return {"charged": key}, 201


@app.post("/crash")
def crash():
    raise RuntimeError("this handler always fails")


@app.post("/crash-later")
def crash_later():
    """Fails while its answer is being sent, so that the connection is closed in the middle of it."""

    def body():
        yield b"one part, "
        raise RuntimeError("this answer always breaks off")

    return app.response_class(body(), status=202)


@app.post("/orders/")
def order():
    return charge()


@app.get("/hello")
def hello():
    return {"hello": "world"}
