//! Times, sizes, statuses, methods and names.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use ipnet::{IpNet, Ipv4Net};
use onceward::http::{ScopeRule, ScopeRuleError};

use super::text_value::{TextValue, text_value};
use super::unknown_keys::nearest;

/// A time with its unit: `30s`, `24h`, `7d`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Time(pub Duration);

impl TextValue for Time {
    const EXPECTED: &'static str = "a time with its unit, such as \"30s\", \"24h\" or \"7d\"";
    const EXAMPLES: &'static [&'static str] = &["500ms", "30s", "10m", "24h", "7d"];

    fn read(text: &str) -> Result<Self, String> {
        let refused = || format!("is {text:?}, but must be {}", Self::EXPECTED);
        // humantime reads "1M" as a month and "1m" as a minute: a retention of thirty days by a slip of the shift key.
        if text.chars().any(|letter| letter.is_ascii_uppercase()) {
            return Err(refused());
        }
        humantime::parse_duration(text).map(Self).map_err(|_| refused())
    }
}

/// The largest unit that needs no fraction; days and minutes only from two on, because people write `24h` and `60s`.
impl fmt::Display for Time {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let millis = self.0.as_millis();
        let units = [("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1000)];
        let fits = |(name, unit): &(&str, u128)| {
            millis.is_multiple_of(*unit)
                && millis >= if matches!(*name, "d" | "m") { 2 * unit } else { *unit }
        };
        match units.into_iter().find(fits) {
            Some((name, unit)) => write!(f, "{}{name}", millis / unit),
            None if millis == 0 => f.write_str("0s"),
            None => write!(f, "{millis}ms"),
        }
    }
}

text_value!(Time, "Time");

/// A number of bytes: `1MiB`, `512KiB`, or plain.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Size(pub u64);

impl TextValue for Size {
    const EXPECTED: &'static str = "a size, such as \"1MiB\", \"512KiB\" or a number of bytes";
    const EXAMPLES: &'static [&'static str] = &["512KiB", "1MiB", "1GiB"];

    fn read(text: &str) -> Result<Self, String> {
        let refused = || format!("is {text:?}, but must be {}", Self::EXPECTED);
        let unit = text.trim_start_matches(|letter: char| letter.is_ascii_digit());
        let number = text.strip_suffix(unit).unwrap_or(text);
        let factor: u64 = match unit.trim() {
            "" | "B" => 1,
            "KiB" => 1 << 10,
            "MiB" => 1 << 20,
            "GiB" => 1 << 30,
            _ => return Err(refused()),
        };
        let number: u64 = number.parse().map_err(|_| refused())?;
        // A size of memory must fit `usize`.
        let bytes = number.checked_mul(factor).filter(|bytes| usize::try_from(*bytes).is_ok());
        bytes.map(Self).ok_or_else(refused)
    }

    fn read_number(number: u64) -> Option<Self> {
        usize::try_from(number).is_ok().then_some(Self(number))
    }
}

impl Size {
    /// Fits `usize`, because parsing checked that.
    pub(super) fn bytes(self) -> usize {
        usize::try_from(self.0).unwrap_or(usize::MAX)
    }
}

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let units = [("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)];
        match units.into_iter().find(|(_, unit)| self.0 >= *unit && self.0.is_multiple_of(*unit)) {
            Some((name, unit)) => write!(f, "{}{name}", self.0 / unit),
            None => write!(f, "{}", self.0),
        }
    }
}

text_value!(Size, "Size");

/// Where to listen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Address(pub SocketAddr);

impl TextValue for Address {
    const EXPECTED: &'static str = "an IP address and a port, such as \"127.0.0.1:8420\"";
    const EXAMPLES: &'static [&'static str] = &["127.0.0.1:8420", "0.0.0.0:8420", "[::1]:8420"];

    fn read(text: &str) -> Result<Self, String> {
        // Two spellings that other programs accept.
        let port = text.strip_prefix(':').or_else(|| text.strip_prefix("localhost:"));
        let advice = match port {
            Some(port) if text.starts_with(':') => {
                format!(": for every address of this machine write \"0.0.0.0:{port}\"")
            }
            Some(port) => format!(": write \"127.0.0.1:{port}\""),
            None => String::new(),
        };
        text.parse().map(Self).map_err(|_| format!("is {text:?}, but must be {}{advice}", Self::EXPECTED))
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

text_value!(Address, "Address");

/// Where a trusted proxy stands: one address, or a network.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Network(pub IpNet);

impl TextValue for Network {
    const EXPECTED: &'static str = "an IP address or a network, such as \"10.0.0.0/8\" or \"::1\"";
    const EXAMPLES: &'static [&'static str] = &["10.0.0.0/8", "192.0.2.7", "::1", "fd00::/8"];

    fn read(text: &str) -> Result<Self, String> {
        let address = text.parse::<IpAddr>().map(IpNet::from);
        let network = address.or_else(|_| text.parse());
        let network: IpNet = network.map_err(|_| format!("is {text:?}, but must be {}", Self::EXPECTED))?;
        if network.trunc() != network {
            return Err(format!(
                "is {text:?}, which is an address within a network: write \"{}\" for that address alone, or \"{}\" for \
                 the whole network",
                network.addr(),
                network.trunc()
            ));
        }
        Ok(Self(canonical(network)))
    }
}

/// A network of IPv4 addresses within IPv6 (`::ffff:10.0.0.0/104`) is that network: peers are compared as IPv4.
fn canonical(network: IpNet) -> IpNet {
    const MAPPED_BITS: u8 = 96;
    let IpNet::V6(v6) = network else { return network };
    let v4 = v6.addr().to_ipv4_mapped().zip(v6.prefix_len().checked_sub(MAPPED_BITS));
    v4.and_then(|(address, prefix)| Ipv4Net::new(address, prefix).ok()).map_or(network, IpNet::V4)
}

impl fmt::Display for Network {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.prefix_len() == self.0.max_prefix_len() { self.0.addr().fmt(f) } else { self.0.fmt(f) }
    }
}

text_value!(Network, "Network");

/// A part of the scope.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ScopePart(pub ScopeRule);

impl TextValue for ScopePart {
    const EXPECTED: &'static str = "\"authorization\", \"header:NAME\", \"basic:user\" or \"fixed:NAME\"";
    const EXAMPLES: &'static [&'static str] =
        &["authorization", "header:X-Tenant", "basic:user", "fixed:everyone"];

    fn read(text: &str) -> Result<Self, String> {
        if let Some(("jwt" | "auth", _)) = text.split_once(':') {
            return Err(format!(
                "is {text:?}, which is not in this version yet: let the proxy in front verify the token and set a \
                 header, and use \"header:NAME\" with scope_verified = true"
            ));
        }
        text.parse().map(Self).map_err(|error: ScopeRuleError| match (&error, meant(text)) {
            (ScopeRuleError::NoSuchRule { .. }, Some(meant)) => {
                format!("is wrong: {error}: did you mean {meant:?}?")
            }
            _ => format!("is wrong: {error}"),
        })
    }
}

/// The part that was probably meant.
fn meant(text: &str) -> Option<String> {
    let (kind, name) = match text.split_once(':') {
        Some((kind, name)) => (nearest(kind, ["header", "fixed"])?, name),
        None => return nearest(text, ["authorization", "basic:user"]).map(str::to_owned),
    };
    Some(format!("{kind}:{name}"))
}

impl fmt::Display for ScopePart {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

text_value!(ScopePart, "ScopePart");

/// An HTTP method.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct MethodName(pub http::Method);

impl TextValue for MethodName {
    const EXPECTED: &'static str = "a method in capital letters, such as \"POST\"";
    const EXAMPLES: &'static [&'static str] = &["POST", "PATCH", "PUT", "DELETE"];

    fn read(text: &str) -> Result<Self, String> {
        // Methods are case-sensitive: `post` would be accepted by every parser and match no request.
        let refused = || format!("is {text:?}, but must be {}", Self::EXPECTED);
        if text.bytes().any(|byte| byte.is_ascii_lowercase()) {
            return Err(refused());
        }
        http::Method::from_bytes(text.as_bytes()).map(Self).map_err(|_| refused())
    }
}

impl fmt::Display for MethodName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

text_value!(MethodName, "Method");

/// How much is logged.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Level(pub String);

impl TextValue for Level {
    const EXPECTED: &'static str =
        "\"error\", \"warn\", \"info\", \"debug\" or \"trace\", or directives such as \"info,hyper=debug\"";
    const EXAMPLES: &'static [&'static str] = &["error", "warn", "info", "debug", "trace"];

    fn read(text: &str) -> Result<Self, String> {
        let refused = || format!("is {text:?}, but must be {}", Self::EXPECTED);
        // A single word that is not a level would be read as the name of a module, and switch everything else off.
        let words = ["error", "warn", "info", "debug", "trace", "off"];
        if !text.contains(['=', ',']) && !words.contains(&text) {
            return Err(refused());
        }
        tracing_subscriber::EnvFilter::try_new(text).map(|_| Self(text.to_owned())).map_err(|_| refused())
    }
}

impl fmt::Display for Level {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

text_value!(Level, "Level");

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_and_sizes_survive_their_text_form() {
        for text in ["0s", "500ms", "1s", "90s", "10m", "24h", "25h", "7d"] {
            assert_eq!(Time::read(text).unwrap().to_string(), text);
        }
        for text in ["0", "1", "1023", "1KiB", "1MiB", "1536KiB", "3GiB"] {
            assert_eq!(Size::read(text).unwrap().to_string(), text);
        }
    }

    #[test]
    fn an_address_is_a_network_of_one_and_mapped_ipv4_is_ipv4() {
        for (text, shown) in [
            ("10.0.0.0/8", "10.0.0.0/8"),
            ("192.0.2.7", "192.0.2.7"),
            ("192.0.2.7/32", "192.0.2.7"),
            ("::1", "::1"),
            ("fd00::/8", "fd00::/8"),
            ("::ffff:10.0.0.0/104", "10.0.0.0/8"),
            ("::ffff:192.0.2.7", "192.0.2.7"),
            ("0.0.0.0/0", "0.0.0.0/0"),
        ] {
            assert_eq!(Network::read(text).unwrap().to_string(), shown);
        }
        for text in ["", "10.0.0.0/33", "10.0.0/8", "localhost", "10.0.0.1/8", "10.0.0.0-10.0.0.9"] {
            assert!(Network::read(text).is_err(), "{text}");
        }
    }

    #[test]
    fn a_time_without_a_unit_and_a_unit_of_another_meaning_are_refused() {
        for text in ["30", "", "s", "-1s", "1M", "7 dys"] {
            assert!(Time::read(text).is_err(), "{text}");
        }
        for text in ["1MB", "MiB", "-1", "1.5MiB", "99999999999GiB"] {
            assert!(Size::read(text).is_err(), "{text}");
        }
    }
}
