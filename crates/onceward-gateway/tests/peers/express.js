// The API of asgi.py as an Express application.
const fs = require("fs");
const path = require("path");
const express = require("express");

const folder = process.env.PEER_FOLDER;
const app = express();
app.use(express.json());

function whenExists(name, then, tries = 3000) {
  if (tries === 0 || fs.existsSync(path.join(folder, name))) return then();
  setTimeout(() => whenExists(name, then, tries - 1), 10);
}

app.post("/charges", (request, response) => {
  const key = request.get("idempotency-key") || "-";
  fs.appendFileSync(path.join(folder, "ledger.txt"), `${key}\n`);
  const answer = () => response.status(201).json({ charged: key });
  const awaited = request.get("x-wait-for");
  if (awaited) whenExists(awaited, answer);
  else answer();
});

app.post("/crash", () => {
  throw new Error("this handler always fails");
});

app.post("/crash-later", (request, response) => {
  // Answers, and closes the connection at once, as a process that is about to exit does.
  response.status(202).json({ accepted: true });
  response.on("finish", () => request.socket.destroy());
});

app.get("/hello", (request, response) => response.json({ hello: "world" }));

const server = app.listen(Number(process.argv[2]), "127.0.0.1", () => console.log("listening"));
if (process.argv[3]) server.keepAliveTimeout = Number(process.argv[3]) * 1000;
process.on("SIGTERM", () => server.close(() => process.exit(0)));
