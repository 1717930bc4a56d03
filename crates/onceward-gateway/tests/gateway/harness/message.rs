//! Requests and responses, as the tests write and read them.

/// A request to be sent.
#[derive(Debug, Clone)]
pub struct Request<'a> {
    pub method: &'a str,
    pub target: &'a str,
    pub headers: Vec<(&'a str, &'a str)>,
    pub body: &'a str,
}

impl<'a> Request<'a> {
    pub fn new(method: &'a str, target: &'a str) -> Self {
        Self { method, target, headers: Vec::new(), body: "" }
    }

    /// A charge under a key.
    pub fn charge(key: &'a str) -> Self {
        Self::new("POST", "/charges").header("idempotency-key", key).body("{\"amount\":1299}")
    }

    pub fn header(mut self, name: &'a str, value: &'a str) -> Self {
        self.headers.push((name, value));
        self
    }

    /// Chooses how the API behaves: one of the behaviours that `ledger/behaviour.rs` lists.
    pub fn behave(self, how: &'a str) -> Self {
        self.header("x-behave", how)
    }

    pub fn body(mut self, body: &'a str) -> Self {
        self.body = body;
        self
    }

    /// The bytes of the request, with the headers that it needs and that the test did not set.
    pub fn bytes(&self) -> Vec<u8> {
        let mut text = format!("{} {} HTTP/1.1\r\n", self.method, self.target);
        let has = |wanted: &str| self.headers.iter().any(|(name, _)| name.eq_ignore_ascii_case(wanted));
        if !has("host") {
            text += "host: test\r\n";
        }
        for (name, value) in &self.headers {
            text += &format!("{name}: {value}\r\n");
        }
        if !self.body.is_empty() {
            if !has("content-type") {
                text += "content-type: application/json\r\n";
            }
            text += &format!("content-length: {}\r\n", self.body.len());
        }
        format!("{text}\r\n{}", self.body).into_bytes()
    }
}

/// A complete response.
#[derive(Debug, Clone)]
pub struct Response {
    pub status: u16,
    /// In the order in which they came, with lower-case names.
    pub headers: Vec<(String, String)>,
    pub body: Vec<u8>,
}

impl Response {
    /// A header's first value, or an empty one.
    pub fn header(&self, name: &str) -> &str {
        self.headers.iter().find(|(found, _)| found == name).map_or("", |(_, value)| value)
    }

    /// Every value of a header, in order.
    pub fn all(&self, name: &str) -> Vec<&str> {
        self.headers.iter().filter(|(found, _)| found == name).map(|(_, value)| value.as_str()).collect()
    }

    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    pub fn json(&self) -> serde_json::Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }

    /// The problem's code, or an empty one.
    pub fn code(&self) -> String {
        let body: serde_json::Value = serde_json::from_slice(&self.body).unwrap_or_default();
        body["code"].as_str().unwrap_or_default().to_owned()
    }

    pub fn is_replayed(&self) -> bool {
        self.header("idempotency-replayed") == "true"
    }

    /// The status and the problem's code, which is what most tests are about.
    pub fn status_and_code(&self) -> (u16, String) {
        (self.status, self.code())
    }
}
