//! The steps of the demo: what is said, the lines to paste, and what each must answer.

use std::net::SocketAddr;

/// How long the demo's gateway waits until it gives an unknown outcome up. A real one waits for minutes.
pub(super) const GIVE_UP_AFTER_SECONDS: u64 = 3;

/// One step of the demo.
pub(super) struct Step {
    /// What happens, for people.
    pub says: &'static str,
    /// The lines to paste.
    pub lines: Vec<Line>,
}

/// A line to paste.
pub(super) struct Line {
    pub command: String,
    /// What its output must have, so that the demo does not claim what did not happen.
    pub shows: &'static [&'static str],
}

fn line(command: String, shows: &'static [&'static str]) -> Line {
    Line { command, shows }
}

/// The steps before the dead letter is resolved.
pub(super) fn before_the_verdict(gateway: SocketAddr) -> Vec<Step> {
    let post = |path: &str, key: &str, rest: &str| {
        format!("curl -i http://{gateway}/{path} -H 'Idempotency-Key: {key}' {rest}")
    };
    let charge = |key: &str, rest: &str| post("charges", key, rest);
    let order = |key: &str, rest: &str| post("orders", key, rest);
    let quiet = format!("curl -s -w '%{{http_code}}\\n' -o /dev/null http://{gateway}/charges");
    vec![
        Step {
            says: "A charge:",
            lines: vec![line(charge("order-1", "-d amount=1299"), &["HTTP/1.1 201", "1299"])],
        },
        Step {
            says: "The same again, from a client that lost the answer. It is replayed, and charged once:",
            lines: vec![line(
                charge("order-1", "-d amount=1299"),
                &["HTTP/1.1 201", "idempotency-replayed: true"],
            )],
        },
        Step {
            says: "Another amount under the same key. It is refused (422), and nothing is charged:",
            lines: vec![line(charge("order-1", "-d amount=9999"), &["HTTP/1.1 422"])],
        },
        Step {
            says: "Two at once. One is charged (201), the other is told to wait (409):",
            lines: vec![line(
                format!(
                    "for i in 1 2; do {quiet} -H 'Idempotency-Key: order-2' -H 'Demo: slow' -d amount=500 & done; wait"
                ),
                &["201", "409"],
            )],
        },
        Step {
            says: "The answer gets lost: the client gives up after a second, and the API charges all the same.\n   Two \
                   seconds later the client tries again, gets the answer, and was charged once:",
            lines: vec![line(
                format!(
                    "curl -m 1 http://{gateway}/charges -H 'Idempotency-Key: order-3' -H 'Demo: slow' -d amount=700; sleep 2; {}",
                    charge("order-3", "-H 'Demo: slow' -d amount=700")
                ),
                &["HTTP/1.1 201", "idempotency-replayed: true"],
            )],
        },
        Step {
            says: "The shop writes its orders into a database, and with each a receipt row, in one transaction:",
            lines: vec![line(order("cart-1", "-d item=book"), &["HTTP/1.1 201", "book"])],
        },
        Step {
            says: "The shop dies before its commit. The row proves that nothing was committed and nothing will be, so the key\n   is \
                   released at once (502, X-Should-Retry: true), and the retry makes the one order:",
            lines: vec![
                line(
                    order("cart-2", "-H 'Demo: die-before-commit' -d item=lamp"),
                    &["HTTP/1.1 502", "idempotency_not_executed", "retry_same_key"],
                ),
                line(order("cart-2", "-d item=lamp"), &["HTTP/1.1 201", "lamp"]),
            ],
        },
        Step {
            says: "The shop dies after its commit. The row has the answer: the client gets it all the same, and so does every retry:",
            lines: vec![
                line(
                    order("cart-3", "-H 'Demo: die-after-commit' -d item=chair"),
                    &["HTTP/1.1 201", "chair"],
                ),
                line(order("cart-3", "-d item=chair"), &["HTTP/1.1 201", "idempotency-replayed: true"]),
            ],
        },
        Step {
            says: "The payments API dies after it charged, and has no receipt row. Nothing here can know that (502), so the retry\n   \
                   is not sent (409). After a while the outcome is a dead letter, and the line that a person needs appears below:",
            lines: vec![
                line(
                    charge("order-4", "-H 'Demo: gone' -d amount=300"),
                    &["HTTP/1.1 502", "idempotency_outcome_unknown"],
                ),
                line(charge("order-4", "-d amount=300"), &["HTTP/1.1 409", "idempotency_outcome_unknown"]),
            ],
        },
    ]
}

/// The steps after it.
pub(super) fn after_the_verdict(gateway: SocketAddr) -> Vec<Step> {
    vec![
        Step {
            says: "After that line the retry gets the answer that the person gave:",
            lines: vec![line(
                format!("curl -i http://{gateway}/charges -H 'Idempotency-Key: order-4' -d amount=300"),
                &["HTTP/1.1 201", "idempotency-replayed: true"],
            )],
        },
        Step {
            says: "What was charged and ordered in the end, by the books of the API and the shop. Everything is there once:",
            lines: vec![
                line(format!("curl http://{gateway}/charges"), &["[1299,500,700,300]"]),
                line(format!("curl http://{gateway}/orders"), &["[\"book\",\"lamp\",\"chair\"]"]),
            ],
        },
    ]
}
