//! The part of an Authorization header that stays the same in every retry.
//!
//! Most schemes sign each request or answer a challenge, so a retry carries another value, and would be a new operation if
//! that value were hashed into the scope. Only `Bearer` with an opaque token and `Basic` repeat their value. Every other
//! scheme is refused, unknown ones included.

use std::borrow::Cow;

use base64::Engine as _;
use base64::alphabet::URL_SAFE;
use base64::engine::general_purpose::STANDARD;
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};

/// Why a credential cannot identify a tenant.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Unusable {
    /// It is neither Basic nor Bearer with one token.
    Changing,
    /// It holds a JSON Web Token.
    Refreshed,
}

/// The header's value in its canonical spelling, `Bearer TOKEN` or `Basic TOKEN`. Nearly all clients send that spelling, so
/// their values are not copied.
pub(super) fn canonical(value: &[u8]) -> Result<Cow<'_, [u8]>, Unusable> {
    let (scheme, token) = parts(value);
    let prefix: &[u8] = if scheme.eq_ignore_ascii_case(b"bearer") {
        b"Bearer "
    } else if scheme.eq_ignore_ascii_case(b"basic") {
        b"Basic "
    } else {
        return Err(Unusable::Changing);
    };
    // These characters separate parameters, or several credentials in one line. A token has none of them.
    if token.is_empty() || token.iter().any(|byte| matches!(byte, b' ' | b'\t' | b',' | b'"')) {
        return Err(Unusable::Changing);
    }
    if holds_jwt(token) || decoded(token).is_some_and(|inside| holds_jwt(&inside)) {
        return Err(Unusable::Refreshed);
    }
    if value.strip_prefix(prefix) == Some(token) {
        return Ok(Cow::Borrowed(value));
    }
    Ok(Cow::Owned([prefix, token].concat()))
}

/// The user name of HTTP Basic, if there is one.
pub(super) fn basic_user(value: &[u8]) -> Option<Vec<u8>> {
    basic(value).map(|(user, _)| user).filter(|user| !user.is_empty())
}

/// User name and password of HTTP Basic.
fn basic(value: &[u8]) -> Option<(Vec<u8>, Vec<u8>)> {
    let (scheme, token) = parts(value);
    if !scheme.eq_ignore_ascii_case(b"basic") {
        return None;
    }
    let mut user = STANDARD.decode(token).ok()?;
    let colon = user.iter().position(|byte| *byte == b':')?;
    let password = user.split_off(colon + 1);
    user.truncate(colon);
    Some((user, password))
}

/// The scheme, and what follows it without the white space around.
fn parts(value: &[u8]) -> (&[u8], &[u8]) {
    let end = value.iter().position(|byte| matches!(byte, b' ' | b'\t')).unwrap_or(value.len());
    let (scheme, rest) = value.split_at(end);
    (scheme, rest.trim_ascii())
}

/// Accepts everything that JWT libraries accept, and more: optional padding, and bits left over at the end.
const LENIENT: GeneralPurpose = GeneralPurpose::new(
    &URL_SAFE,
    GeneralPurposeConfig::new()
        .with_decode_allow_trailing_bits(true)
        .with_decode_padding_mode(DecodePaddingMode::Indifferent),
);

/// Decodes base64 in either alphabet, with or without padding. The result is only searched for tokens, and not hashed.
fn decoded(text: &[u8]) -> Option<Vec<u8>> {
    let mut text: Vec<u8> = text
        .iter()
        .filter(|byte| **byte != b'=')
        .map(|byte| match byte {
            b'+' => b'-',
            b'/' => b'_',
            other => *other,
        })
        .collect();
    // One character after the last group of four holds less than a byte.
    if text.len() % 4 == 1 {
        text.pop();
    }
    LENIENT.decode(text).ok()
}

/// How many `name=` prefixes are skipped in search of a token. Each one reads the rest of the text, and clients choose how
/// long that is.
const NAMES_MAX: usize = 8;

/// Whether a text contains a JSON Web Token: alone, as a password, after `Bearer` or `token=`.
fn holds_jwt(text: &[u8]) -> bool {
    let token = |byte: &u8| byte.is_ascii_alphanumeric() || b"-_+/=.~".contains(byte);
    let mut words = text.split(|byte| !token(byte));
    words.any(|word| {
        // A name ends with `=`, unless that is padding.
        let ends = |pair: &&[u8]| pair[0] == b'=' && pair[1] != b'=';
        let places = word.windows(2).enumerate().filter(|(_, pair)| ends(pair)).map(|(place, _)| place + 1);
        is_jwt(word) || places.take(NAMES_MAX).any(|place| is_jwt(&word[place..]))
    })
}

/// Three or five base64 parts, of which the first is a JSON object. No opaque token begins like that.
fn is_jwt(token: &[u8]) -> bool {
    // A selective disclosure JWT has its disclosures after a tilde.
    let token = token.split(|byte| *byte == b'~').next().unwrap_or_default();
    let base64 = |byte: &u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'+' | b'/' | b'=');
    let parts: Vec<&[u8]> = token.split(|byte| *byte == b'.').collect();
    // The signature of an unsigned token is empty, and so is the key of some encrypted ones.
    matches!(parts.len(), 3 | 5)
        && parts.iter().all(|part| part.iter().all(base64))
        && parts.first().is_some_and(|header| begins_an_object(header))
}

fn begins_an_object(base64: &[u8]) -> bool {
    let Some(decoded) = decoded(base64) else { return false };
    let inside = decoded.trim_ascii_start().strip_prefix(b"{").map(<[u8]>::trim_ascii_start);
    matches!(inside, Some([b'"' | b'}', ..]))
}

#[cfg(test)]
mod tests {
    use base64::engine::general_purpose::{URL_SAFE as PADDED, URL_SAFE_NO_PAD};

    use super::*;

    fn spelt(value: &str) -> Result<String, Unusable> {
        canonical(value.as_bytes()).map(|found| String::from_utf8(found.into_owned()).unwrap())
    }

    #[test]
    fn every_spelling_of_a_credential_has_one_form_and_the_common_one_is_kept_as_it_came() {
        for value in ["Bearer sk_1", "bearer sk_1", "BEARER  sk_1", "Bearer\t sk_1"] {
            assert_eq!(spelt(value), Ok("Bearer sk_1".to_owned()), "{value:?}");
        }
        assert!(matches!(canonical(b"Bearer sk_1"), Ok(Cow::Borrowed(b"Bearer sk_1"))));
        assert!(matches!(canonical(b"Basic YTpi"), Ok(Cow::Borrowed(b"Basic YTpi"))));
        assert_eq!(spelt("bAsIc   YTpi"), Ok("Basic YTpi".to_owned()));
        assert_ne!(spelt("Bearer SK_1"), spelt("Bearer sk_1"));
        assert_ne!(spelt("Basic YTpi"), spelt("Bearer YTpi"));
    }

    #[test]
    fn a_json_web_token_is_found_however_it_is_written() {
        let header = "{ \"alg\":\"HS256\"}";
        let object = |text: &str| URL_SAFE_NO_PAD.encode(text);
        for token in [
            "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.c2ln".to_owned(),
            // Unsigned, encrypted, with a detached payload.
            "eyJhbGciOiJub25lIn0.eyJzdWIiOiIxIn0.".to_owned(),
            "eyJh.a.b.c.d".to_owned(),
            "eyJhbGciOiJIUzI1NiJ9..c2ln".to_owned(),
            // With white space in its header, with padding, and in the other alphabet.
            format!("{}.a.b", object(header)),
            format!("{}.a.b", object("\n{\r\n\t\"alg\": \"none\"}")),
            format!("{}.{}.c2ln", PADDED.encode(header), PADDED.encode("{\"sub\":\"1\"}")),
            format!("{}.a.b+/", STANDARD.encode("{\"a\":\"???>>>\"}")),
            // With disclosures, and the proof of a key that has dots of its own.
            "eyJhbGciOiJIUzI1NiJ9.e30.c2ln~WyJhIl0~eyJh.b.c".to_owned(),
            format!("{}.e30.", object("{}")),
        ] {
            for scheme in ["Bearer ", "bearer   ", "BEARER\t"] {
                assert_eq!(spelt(&format!("{scheme}{token}")), Err(Unusable::Refreshed), "{scheme}{token}");
            }
            let basic = STANDARD.encode(format!("token:{token}"));
            assert_eq!(spelt(&format!("Basic {basic}")), Err(Unusable::Refreshed), "{token} as a password");
            for text in
                [format!("a:{token}"), format!("ab:{token}"), format!("a:Bearer {token}"), token.clone()]
            {
                for basic in [STANDARD.encode(&text), URL_SAFE_NO_PAD.encode(&text)] {
                    assert_eq!(spelt(&format!("Basic {basic}")), Err(Unusable::Refreshed), "{text} in Basic");
                }
            }
            for bearer in [format!("token={token}"), format!("{token};"), URL_SAFE_NO_PAD.encode(&token)] {
                assert_eq!(spelt(&format!("Bearer {bearer}")), Err(Unusable::Refreshed), "{bearer}");
            }
        }
    }

    #[test]
    fn a_token_is_searched_behind_a_bounded_number_of_names() {
        let token = "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.c2ln";
        let behind = |names: usize| spelt(&format!("Bearer {}{token}", "a=".repeat(names)));
        assert_eq!(behind(NAMES_MAX), Err(Unusable::Refreshed));
        assert!(behind(NAMES_MAX + 1).is_ok());
    }

    #[test]
    fn a_token_that_only_resembles_a_json_web_token_is_opaque() {
        for token in
            ["sk_live.with.dots", "eyJustAKey", "eyJh.a", "eyJh.a.b.c", "eyJh.a!.b", "abc.def.ghi", "1|x~y"]
        {
            assert_eq!(spelt(&format!("Bearer {token}")), Ok(format!("Bearer {token}")));
        }
    }
}
