//! Requests that could mean two things. None of them reaches the service, and each ends its connection.

use onceward_gateway::settings::Limits;

use crate::{answers, front, listen, read_to_end, send_byte_by_byte, statuses};
use tokio::io::AsyncWriteExt as _;

/// What would be done if the request before it were not refused.
const HIDDEN: &str = "GET /hidden HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n";

/// What is wrong, the head, and a word of the detail that tells it.
const REFUSED: &[(&str, &str, &str)] = &[
    (
        "length, then encoding",
        "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n",
        "both",
    ),
    (
        "encoding, then length",
        "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\nContent-Length: 4\r\n\r\n",
        "both",
    ),
    (
        "two lengths",
        "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 4\r\nContent-Length: 5\r\n\r\n",
        "several Content-Length",
    ),
    (
        "two equal lengths",
        "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 4\r\ncontent-length: 4\r\n\r\n",
        "several Content-Length",
    ),
    ("a list of lengths", "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 4, 4\r\n\r\n", "plain number"),
    ("a length with a sign", "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: +4\r\n\r\n", "plain number"),
    ("a negative length", "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: -1\r\n\r\n", "plain number"),
    ("a hexadecimal length", "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 0x4\r\n\r\n", "plain number"),
    ("an empty length", "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: \r\n\r\n", "plain number"),
    (
        "a length that overflows",
        "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 18446744073709551617\r\n\r\n",
        "plain number",
    ),
    ("another encoding", "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: gzip\r\n\r\n", "chunked"),
    (
        "an encoding before chunked",
        "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: gzip, chunked\r\n\r\n",
        "chunked",
    ),
    (
        "an encoding after chunked",
        "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked, identity\r\n\r\n",
        "chunked",
    ),
    (
        "an encoding spelt otherwise",
        "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: xchunked\r\n\r\n",
        "chunked",
    ),
    (
        "an encoding in capitals",
        "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: CHUNKED\r\n\r\n",
        "chunked",
    ),
    ("a quoted encoding", "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: \"chunked\"\r\n\r\n", "chunked"),
    (
        "an encoding twice",
        "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n",
        "chunked",
    ),
    ("an empty encoding", "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding:\r\n\r\n", "chunked"),
    (
        "an encoding with a vertical tab",
        "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: \x0bchunked\r\n\r\n",
        "control",
    ),
    (
        "an encoding in HTTP/1.0",
        "POST / HTTP/1.0\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n",
        "HTTP/1.0",
    ),
    ("a folded header", "GET / HTTP/1.1\r\nHost: a\r\nA: b\r\n c\r\n\r\n", "second line"),
    ("a folded first header", "GET / HTTP/1.1\r\n Host: a\r\n\r\n", "second line"),
    ("bare LF everywhere", "GET / HTTP/1.1\nHost: a\n\n", "CR or LF"),
    ("bare LF after the request line", "GET / HTTP/1.1\nHost: a\r\n\r\n", "CR or LF"),
    ("bare LF after a header", "GET / HTTP/1.1\r\nHost: a\nA: b\r\n\r\n", "CR or LF"),
    ("bare LF as the last line", "GET / HTTP/1.1\r\nHost: a\r\n\n\r\n", "CR or LF"),
    ("bare LF before the request", "\nGET / HTTP/1.1\r\nHost: a\r\n\r\n", "CR or LF"),
    ("bare CR in a value", "GET / HTTP/1.1\r\nHost: a\r\nA: b\rContent-Length: 4\r\n\r\n", "CR or LF"),
    ("bare CR in a name", "GET / HTTP/1.1\r\nHost: a\r\nA\rB: b\r\n\r\n", "CR or LF"),
    ("bare CR in the request line", "GET /\r HTTP/1.1\r\nHost: a\r\n\r\n", "CR or LF"),
    ("two CRs", "GET / HTTP/1.1\r\r\nHost: a\r\n\r\n", "CR or LF"),
    ("two empty lines before the request", "\r\n\r\nGET / HTTP/1.1\r\nHost: a\r\n\r\n", "first line"),
    ("a space before the colon", "POST / HTTP/1.1\r\nHost: a\r\nContent-Length : 4\r\n\r\n", "colon"),
    ("a tab before the colon", "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding\t: chunked\r\n\r\n", "colon"),
    ("no colon", "GET / HTTP/1.1\r\nHost: a\r\nA\r\n\r\n", "colon"),
    ("no name", "GET / HTTP/1.1\r\nHost: a\r\n: b\r\n\r\n", "colon"),
    ("NUL in a value", "GET / HTTP/1.1\r\nHost: a\r\nA: b\0c\r\n\r\n", "control"),
    ("NUL in a name", "GET / HTTP/1.1\r\nHost: a\r\nA\0: b\r\n\r\n", "control"),
    ("NUL in the target", "GET /\0 HTTP/1.1\r\nHost: a\r\n\r\n", "control"),
    ("no host", "GET / HTTP/1.1\r\nA: b\r\n\r\n", "no Host"),
    ("two hosts", "GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n", "several Host"),
    ("two equal hosts", "GET / HTTP/1.1\r\nHost: a\r\nhost: a\r\n\r\n", "several Host"),
    ("a list of hosts", "GET / HTTP/1.1\r\nHost: a, b\r\n\r\n", "not a host"),
    ("a user in the host", "GET / HTTP/1.1\r\nHost: a@b\r\n\r\n", "not a host"),
    ("a path in the host", "GET / HTTP/1.1\r\nHost: a/b\r\n\r\n", "not a host"),
    ("two spaces", "GET  / HTTP/1.1\r\nHost: a\r\n\r\n", "one space"),
    ("a tab between", "GET\t/ HTTP/1.1\r\nHost: a\r\n\r\n", "one space"),
    ("a space in the target", "GET /a b HTTP/1.1\r\nHost: a\r\n\r\n", "one space"),
    ("a space after the version", "GET / HTTP/1.1 \r\nHost: a\r\n\r\n", "one space"),
    ("a fragment", "GET /a#b HTTP/1.1\r\nHost: a\r\n\r\n", "fragment"),
    ("another version", "GET / HTTP/1.2\r\nHost: a\r\n\r\n", "HTTP/1.1"),
    ("no version", "GET /\r\n\r\n", "HTTP/1.1"),
    ("a version in small letters", "GET / http/1.1\r\nHost: a\r\n\r\n", "HTTP/1.1"),
    ("HTTP/2 that is not", "PRI * HTTP/2.0\r\n\r\nXX\r\n\r\n", "HTTP/1.1"),
    ("the method of a stand-in", "ONCEWARD-REFUSED / HTTP/1.1\r\nHost: a\r\n\r\n", "first line"),
    ("a method in small letters", "post / HTTP/1.1\r\nHost: a\r\n\r\n", "capital letters"),
    ("a method in mixed letters", "pAtCh /a HTTP/1.0\r\n\r\n", "capital letters"),
    (
        "a method without an end",
        "AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA / HTTP/1.1\r\nHost: a\r\n\r\n",
        "first line",
    ),
    ("TLS without TLS", "\x16\x03\x01\x02\0\x01\0\x01\u{7c}\x03\x03", "control"),
];

#[tokio::test]
async fn a_request_that_could_mean_two_things_is_refused_and_ends_the_connection() {
    let running = listen(front(Limits::default())).await;
    for (what, head, detail) in REFUSED {
        let got = running.send(format!("{head}0\r\n\r\n{HIDDEN}").as_bytes()).await;
        assert_eq!(statuses(&got), [400], "{what}: {got:?}");
        let answer = &got[0];
        assert!(answer.head.contains("\r\nconnection: close"), "{what}: {answer:?}");
        assert!(answer.head.contains("\r\ncontent-type: application/problem+json"), "{what}: {answer:?}");
        assert!(!answer.head.contains("\r\nseen"), "{what}: {answer:?}");
        let problem: serde_json::Value = serde_json::from_str(&answer.body).unwrap();
        assert_eq!(problem["status"], 400, "{what}");
        assert!(problem["detail"].as_str().unwrap().contains(detail), "{what}: {problem}");
    }
    assert_eq!(running.ledger.whole(), [""; 0]);
    assert_eq!(running.ledger.broken(), [""; 0]);
}

#[tokio::test]
async fn it_is_refused_just_the_same_when_it_comes_byte_by_byte() {
    for (what, head, detail) in REFUSED {
        let (got, ledger) =
            send_byte_by_byte(Limits::default(), format!("{head}0\r\n\r\n{HIDDEN}").as_bytes()).await;
        assert_eq!(statuses(&got), [400], "{what}: {got:?}");
        assert!(got[0].body.contains(detail), "{what}: {got:?}");
        assert_eq!(ledger.whole(), [""; 0], "{what}");
    }
}

#[tokio::test]
async fn a_bad_request_after_a_good_one_is_refused_after_the_good_one_was_answered() {
    for (what, head, _) in REFUSED {
        let bytes =
            format!("POST /good HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\nhi{head}0\r\n\r\n{HIDDEN}");
        let running = listen(front(Limits::default())).await;
        let got = running.send(bytes.as_bytes()).await;
        assert_eq!(statuses(&got), [200, 400], "{what}: {got:?}");
        assert_eq!(running.ledger.whole(), ["POST /good hi"], "{what}");
    }
}

#[tokio::test]
async fn a_bad_request_is_refused_in_its_turn_while_the_good_one_is_still_being_answered() {
    let running = listen(front(Limits::default())).await;
    let mut stream = running.connect().await;
    stream
        .write_all(b"GET /wait HTTP/1.1\r\nHost: a\r\n\r\nGET / HTTP/1.1\r\nHost : a\r\n\r\n")
        .await
        .unwrap();
    running.ledger.entered.notified().await;
    running.ledger.go_on.notify_one();
    let got = answers(&read_to_end(&mut stream).await);
    assert_eq!(statuses(&got), [200, 400], "{got:?}");
}

#[tokio::test]
async fn a_request_in_the_body_of_another_is_only_a_body() {
    let length = HIDDEN.len();
    let hexadecimal = format!("{length:x}");
    let by_length = format!("POST /a HTTP/1.1\r\nHost: a\r\nContent-Length: {length}\r\n\r\n{HIDDEN}");
    let chunked = format!(
        "POST /b HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n{hexadecimal}\r\n{HIDDEN}\r\n0\r\n\r\n"
    );
    let last = "GET /last HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n";
    let bytes = [by_length.as_str(), &chunked, last].concat();
    let expected = [format!("POST /a {HIDDEN}"), format!("POST /b {HIDDEN}"), "GET /last ".to_owned()];

    let running = listen(front(Limits::default())).await;
    assert_eq!(statuses(&running.send(bytes.as_bytes()).await), [200, 200, 200]);
    assert_eq!(running.ledger.whole(), expected);

    let (got, ledger) = send_byte_by_byte(Limits::default(), bytes.as_bytes()).await;
    assert_eq!(statuses(&got), [200, 200, 200]);
    assert_eq!(ledger.whole(), expected);
}

/// What follows a good head that announces chunks.
const BAD_CHUNKS: &[(&str, &str)] = &[
    ("a size that is no number", "x\r\nabc\r\n0\r\n\r\n"),
    ("a size with a prefix", "0x3\r\nabc\r\n0\r\n\r\n"),
    ("a size with a sign", "+3\r\nabc\r\n0\r\n\r\n"),
    ("a size with a space", "3 \r\nabc\r\n0\r\n\r\n"),
    ("a size with too many digits", "00000000000000003\r\nabc\r\n0\r\n\r\n"),
    ("no size", "\r\nabc\r\n0\r\n\r\n"),
    ("an extension", "3;a=b\r\nabc\r\n0\r\n\r\n"),
    ("bare LF after a size", "3\nabc\r\n0\r\n\r\n"),
    ("bare CR after a size", "3\rabc\r\n0\r\n\r\n"),
    ("bare LF after data", "3\r\nabc\n0\r\n\r\n"),
    ("data longer than its size", "3\r\nabcd\r\n0\r\n\r\n"),
    ("data shorter than its size", "5\r\nabc\r\n0\r\n\r\n"),
    ("a malformed trailer", "3\r\nabc\r\n0\r\na : b\r\n\r\n"),
    ("a trailer that frames", "3\r\nabc\r\n0\r\nContent-Length: 5\r\n\r\n"),
    ("bare LF after the last chunk", "3\r\nabc\r\n0\r\n\n\r\n"),
    ("something after the last chunk", "3\r\nabc\r\n0\r\nGET / HTTP/1.1\r\n\r\n"),
];

#[tokio::test]
async fn a_malformed_chunked_body_breaks_off_and_ends_the_connection() {
    for (what, chunks) in BAD_CHUNKS {
        let bytes =
            format!("POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n{chunks}{HIDDEN}");
        let running = listen(front(Limits::default())).await;
        let got = running.send(bytes.as_bytes()).await;
        assert_eq!(statuses(&got), [422], "{what}: {got:?}");
        assert_eq!(running.ledger.whole(), [""; 0], "{what}");
        assert_eq!(running.ledger.broken().len(), 1, "{what}");

        let (got, ledger) = send_byte_by_byte(Limits::default(), bytes.as_bytes()).await;
        assert_eq!(statuses(&got), [422], "{what}: {got:?}");
        assert_eq!(ledger.whole(), [""; 0], "{what}");
    }
}

#[tokio::test]
async fn good_requests_are_answered_in_order_on_one_connection() {
    let bytes = "GET /1 HTTP/1.1\r\nHost: a\r\n\r\n\
                 POST /2 HTTP/1.1\r\nhost: a:80\r\nContent-Length: 3\r\n\r\ntwo\r\n\
                 POST /3 HTTP/1.1\r\nHOST: [::1]\r\nTransfer-Encoding: chunked\r\n\r\n\
                 3\r\nthr\r\n02\r\nee\r\n0\r\nchecksum: x\r\n\r\n\
                 DELETE /4?five HTTP/1.1\r\nHost:\r\nContent-Length: 0\r\n\r\n\
                 GET /5 HTTP/1.0\r\n\r\n";
    let expected = ["GET /1 ", "POST /2 two", "POST /3 three", "DELETE /4 ", "GET /5 "];
    let running = listen(front(Limits::default())).await;
    let got = running.send(bytes.as_bytes()).await;
    assert_eq!(statuses(&got), [200; 5], "{got:?}");
    assert_eq!(running.ledger.whole(), expected);

    let (got, ledger) = send_byte_by_byte(Limits::default(), bytes.as_bytes()).await;
    assert_eq!(statuses(&got), [200; 5], "{got:?}");
    assert_eq!(ledger.whole(), expected);
}
