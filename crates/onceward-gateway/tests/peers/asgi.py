"""A FastAPI application: charges, requests that crash, and redirects of paths that end with a slash."""

import asyncio

from fastapi import BackgroundTasks, FastAPI, Header

import ledger

app = FastAPI()


@app.post("/charges", status_code=201)
async def charge(idempotency_key: str = Header("-"), x_wait_for: str = Header("")):
    ledger.write(idempotency_key)
    if x_wait_for:
        await asyncio.to_thread(ledger.wait_for, x_wait_for)
    return {"charged": idempotency_key}


@app.post("/crash")
async def crash():
    raise RuntimeError("this handler always fails")


@app.post("/crash-later", status_code=202)
async def crash_later(tasks: BackgroundTasks):
    """Answers, and fails afterwards: uvicorn then closes the connection, which the answer did not announce."""
    tasks.add_task(crash)
    return {"accepted": True}


@app.get("/hello")
async def hello():
    return {"hello": "world"}
