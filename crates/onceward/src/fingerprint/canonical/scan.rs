//! Reads a document once: checks it, writes its tokens in canonical spelling, and notes where members are.

use super::{
    super::pointer::{Pointer, Token},
    Container, Fate, Member, NotCanonical, Numbers, Rules, Scratch, escape,
    number::Number,
    offset, order,
    order::Spelling,
};

/// A container that has begun and not yet ended.
#[derive(Clone, Copy)]
pub(super) struct Open {
    kind: Kind,
    /// Where in `pending` its members begin.
    first: usize,
    /// Its place in `containers`; none for an array that no pointer leads into, of which nothing needs to be known.
    container: Option<usize>,
    /// One bit for each ignored pointer whose tokens so far lead here.
    leads: u64,
    /// Elements begun so far.
    elements: usize,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Object,
    Array,
}

enum Next {
    Value,
    End,
}

struct Scanner<'a> {
    source: &'a [u8],
    at: usize,
    /// Up to here the source is in `text`; what lies between here and `at` is canonical as it stands.
    copied: usize,
    rules: Rules<'a>,
    /// Like [`Open::leads`], for the value that comes next.
    leads: u64,
    out: &'a mut Scratch,
}

/// Leaves the tokens in `out.text` and what has to be rewritten in `out.containers` and `out.members`.
pub(super) fn scan(out: &mut Scratch, source: &str, rules: Rules<'_>) -> Result<(), NotCanonical> {
    let leads = match rules.ignored.len() {
        0 => 0,
        count => u64::MAX >> (64 - count.min(64)),
    };
    let mut scanner = Scanner { source: source.as_bytes(), at: 0, copied: 0, rules, leads, out };
    scanner.document()
}

impl Scanner<'_> {
    fn document(&mut self) -> Result<(), NotCanonical> {
        loop {
            self.skip_space();
            match self.peek() {
                b'"' => {
                    self.string()?;
                }
                b'{' => {
                    self.open(Kind::Object)?;
                    if self.peek() != b'}' {
                        self.name()?;
                        continue;
                    }
                    self.at += 1;
                    self.close()?;
                }
                b'[' => {
                    self.open(Kind::Array)?;
                    if self.peek() != b']' {
                        self.element();
                        continue;
                    }
                    self.at += 1;
                    self.close()?;
                }
                b'-' | b'0'..=b'9' => self.number()?,
                b't' => self.literal(b"true")?,
                b'f' => self.literal(b"false")?,
                b'n' => self.literal(b"null")?,
                _ => return Err(self.invalid()),
            }
            if let Next::End = self.after_value()? {
                self.copy_to(self.at);
                return Ok(());
            }
        }
    }

    /// Ends as many containers as end here.
    fn after_value(&mut self) -> Result<Next, NotCanonical> {
        loop {
            let Some(open) = self.out.open.last().copied() else {
                self.skip_space();
                return if self.at == self.source.len() { Ok(Next::End) } else { Err(self.invalid()) };
            };
            if open.container.is_some() {
                let end = self.position();
                if let Some(member) = self.out.pending.last_mut() {
                    member.end = end;
                }
            }
            self.skip_space();
            match (open.kind, self.peek()) {
                (Kind::Object, b',') => {
                    self.at += 1;
                    self.skip_space();
                    self.name()?;
                    return Ok(Next::Value);
                }
                (Kind::Array, b',') => {
                    self.at += 1;
                    self.skip_space();
                    self.element();
                    return Ok(Next::Value);
                }
                (Kind::Object, b'}') | (Kind::Array, b']') => {
                    self.at += 1;
                    self.close()?;
                }
                _ => return Err(self.invalid()),
            }
        }
    }

    fn open(&mut self, kind: Kind) -> Result<(), NotCanonical> {
        if self.out.open.len() >= self.rules.max_depth {
            return Err(NotCanonical::TooDeep { limit: self.rules.max_depth });
        }
        let noted = kind == Kind::Object || self.leads != 0;
        let container = noted.then_some(self.out.containers.len());
        if noted {
            let start = self.position();
            self.out.containers.push(Container { start, end: start, next: 0, rewritten: None });
        }
        let first = self.out.pending.len();
        self.out.open.push(Open { kind, first, container, leads: self.leads, elements: 0 });
        self.at += 1;
        self.skip_space();
        Ok(())
    }

    /// The name of a member, and the colon after it.
    fn name(&mut self) -> Result<(), NotCanonical> {
        if self.peek() != b'"' {
            return Err(self.invalid());
        }
        let start = self.position();
        let spelling = self.string()?;
        let name_end = self.position();
        self.skip_space();
        if self.peek() != b':' {
            return Err(self.invalid());
        }
        let fate = self.follow_name(start, name_end);
        self.at += 1;
        let container = offset(self.out.containers.len());
        self.out.pending.push(Member { start, name_end, end: start, container, spelling, fate });
        Ok(())
    }

    /// The place of an element, which only matters where an ignored pointer leads into the array.
    fn element(&mut self) {
        let depth = self.out.open.len();
        let Some(open) = self.out.open.last_mut() else { return };
        if open.leads == 0 {
            self.leads = 0;
            return;
        }
        let index = open.elements;
        open.elements += 1;
        let (leads, fate) = follow(self.rules.ignored, open.leads, depth, |token| token.is_index(index));
        self.leads = leads;
        let first = open.first;
        // Adjacent elements with the same fate are one member, so that a long array costs no more than its pointers.
        if self.out.pending[first..].last().is_some_and(|before| before.fate == fate) {
            return;
        }
        let start = self.position();
        let container = offset(self.out.containers.len());
        let spelling = Spelling::Plain;
        self.out.pending.push(Member { start, name_end: start, end: start, container, spelling, fate });
    }

    fn follow_name(&mut self, start: u32, name_end: u32) -> Fate {
        let depth = self.out.open.len();
        let leads = self.out.open.last().map_or(0, |open| open.leads);
        if leads == 0 {
            self.leads = 0;
            return Fate::Kept;
        }
        self.copy_to(self.at);
        let name = unquoted(&self.out.text, start, name_end);
        let (leads, fate) = follow(self.rules.ignored, leads, depth, |token| token.is_name(name));
        self.leads = leads;
        fate
    }

    /// Ends the innermost container, and notes its members if they are to be written in another order or not at all.
    fn close(&mut self) -> Result<(), NotCanonical> {
        let Some(open) = self.out.open.pop() else { return Ok(()) };
        let Some(container) = open.container else { return Ok(()) };
        self.copy_to(self.at);
        let Scratch { text, pending, members, containers, .. } = &mut *self.out;
        let own = &mut pending[open.first..];
        let mut rewrite = own.iter().any(|member| member.fate == Fate::Ignored);
        if open.kind == Kind::Object {
            let compare = |left: &Member, right: &Member| order::compare(left.name(text), right.name(text));
            if !own.is_sorted_by(|left, right| compare(left, right).is_lt()) {
                own.sort_unstable_by(compare);
                if own.windows(2).any(|pair| compare(&pair[0], &pair[1]).is_eq()) {
                    return Err(NotCanonical::DuplicateName { at: self.at });
                }
                rewrite = true;
            }
        }
        if rewrite {
            let first = members.len();
            members.extend(own.iter().filter(|member| member.fate == Fate::Kept));
            let next = offset(containers.len());
            containers[container].end = offset(text.len());
            containers[container].next = next;
            containers[container].rewritten = Some((offset(first), offset(members.len())));
        } else if container + 1 == containers.len() {
            containers.pop();
        }
        pending.truncate(open.first);
        Ok(())
    }

    fn string(&mut self) -> Result<Spelling, NotCanonical> {
        self.at += 1;
        let mut spelling = Spelling::Plain;
        loop {
            self.at += escape::plain_run(&self.source[self.at..]);
            match self.peek() {
                b'"' => {
                    self.at += 1;
                    return Ok(spelling);
                }
                b'\\' => {
                    spelling = Spelling::Escaped;
                    self.escape()?;
                }
                _ => return Err(self.invalid()),
            }
        }
    }

    fn escape(&mut self) -> Result<(), NotCanonical> {
        let start = self.at;
        self.at += 1;
        match self.peek() {
            b'"' | b'\\' | b'b' | b'f' | b'n' | b'r' | b't' => self.at += 1,
            b'/' => {
                self.copy_to(start);
                self.copied = self.at;
                self.at += 1;
            }
            b'u' => {
                self.at += 1;
                let character = self.escaped_character()?;
                self.copy_to(start);
                self.copied = self.at;
                escape::push_escaped(&mut self.out.text, character);
            }
            _ => return Err(self.invalid()),
        }
        Ok(())
    }

    fn escaped_character(&mut self) -> Result<char, NotCanonical> {
        let first = self.code_unit()?;
        let second = match first {
            0xd800..0xdc00 if self.source[self.at..].starts_with(b"\\u") => {
                self.at += 2;
                Some(self.code_unit()?)
            }
            _ => None,
        };
        let mut characters = char::decode_utf16([first].into_iter().chain(second));
        match (characters.next(), characters.next()) {
            (Some(Ok(character)), None) => Ok(character),
            _ => Err(NotCanonical::LoneSurrogate { at: self.at }),
        }
    }

    fn code_unit(&mut self) -> Result<u16, NotCanonical> {
        let digits = self.source[self.at..].first_chunk().copied();
        let unit = digits.and_then(escape::code_unit).ok_or(self.invalid())?;
        self.at += 4;
        Ok(unit)
    }

    fn number(&mut self) -> Result<(), NotCanonical> {
        let start = self.at;
        let number = Number::read(&self.source[start..])
            .map_err(|sound| NotCanonical::InvalidJson { at: start + sound })?;
        self.at += number.text.len();
        let as_it_stands = match self.rules.numbers {
            Numbers::Exact => number.is_exact_form(),
            Numbers::Rfc8785 => number.is_double_form(),
        };
        if as_it_stands {
            return Ok(());
        }
        let out = &mut self.out.text;
        out.extend_from_slice(&self.source[self.copied..start]);
        self.copied = self.at;
        match self.rules.numbers {
            Numbers::Exact => number.push_exact(out),
            Numbers::Rfc8785 => number.push_double(out),
        }
        .map_err(|_| NotCanonical::NumberOutOfRange { at: self.at })
    }

    fn literal(&mut self, literal: &[u8]) -> Result<(), NotCanonical> {
        if !self.source[self.at..].starts_with(literal) {
            return Err(self.invalid());
        }
        self.at += literal.len();
        Ok(())
    }

    fn skip_space(&mut self) {
        if !matches!(self.peek(), b' ' | b'\t' | b'\n' | b'\r') {
            return;
        }
        self.copy_to(self.at);
        while matches!(self.peek(), b' ' | b'\t' | b'\n' | b'\r') {
            self.at += 1;
        }
        self.copied = self.at;
    }

    /// The next byte; zero, which JSON allows nowhere, at the end.
    fn peek(&self) -> u8 {
        self.source.get(self.at).copied().unwrap_or(0)
    }

    /// Where in `text` the next token will begin.
    fn position(&self) -> u32 {
        offset(self.out.text.len() + (self.at - self.copied))
    }

    fn copy_to(&mut self, to: usize) {
        self.out.text.extend_from_slice(&self.source[self.copied..to]);
        self.copied = to;
    }

    fn invalid(&self) -> NotCanonical {
        NotCanonical::InvalidJson { at: self.at }
    }
}

/// Follows the pointers in `leads` by the token that names something in the container at `depth`: which of them lead
/// on, and whether one ends here.
fn follow(ignored: &[Pointer], leads: u64, depth: usize, is_named: impl Fn(&Token) -> bool) -> (u64, Fate) {
    let mut onward = 0;
    let mut fate = Fate::Kept;
    for (bit, pointer) in ignored.iter().enumerate().filter(|(bit, _)| leads >> bit & 1 == 1) {
        match &pointer.tokens()[depth - 1..] {
            [last] if is_named(last) => fate = Fate::Ignored,
            [token, _, ..] if is_named(token) => onward |= 1 << bit,
            _ => {}
        }
    }
    (onward, fate)
}

impl Member {
    fn name<'a>(&self, text: &'a [u8]) -> (&'a [u8], Spelling) {
        (unquoted(text, self.start, self.name_end), self.spelling)
    }
}

fn unquoted(text: &[u8], start: u32, end: u32) -> &[u8] {
    &text[start as usize + 1..end as usize - 1]
}
