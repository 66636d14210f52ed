//! A reader of JSON texts, value by value: what a job loads has no JSON library. It builds no tree, so memory is bounded by the text.
//!
//! Numbers are read as `f64`; whole numbers are exact up to 2^53.

use std::collections::BTreeSet;

/// Nesting at which a text is refused.
const DEPTH_MAX: usize = 32;
/// Fields of an object at which a text is refused: their names are kept while it is read.
const FIELDS_MAX: usize = 1024;

/// See the module documentation. Errors are sentences with line and column.
#[derive(Debug)]
pub struct Json<'a> {
    text: &'a [u8],
    at: usize,
    depth: usize,
}

impl<'a> Json<'a> {
    pub fn new(text: &'a str) -> Self {
        Json { text: text.as_bytes(), at: 0, depth: 0 }
    }

    /// An error at the reader's place.
    pub fn wrong<T>(&self, what: &str) -> Result<T, String> {
        let before = self.text.get(..self.at.min(self.text.len())).unwrap_or_default();
        let line = before.iter().filter(|b| **b == b'\n').count() + 1;
        let column = before.iter().rev().take_while(|b| **b != b'\n').count() + 1;
        Err(format!("line {line}, column {column}: {what}"))
    }

    /// The next byte that is no space.
    fn peek(&mut self) -> Option<u8> {
        while self.text.get(self.at).is_some_and(|b| b" \t\r\n".contains(b)) {
            self.at += 1;
        }
        self.text.get(self.at).copied()
    }

    fn takes(&mut self, byte: u8) -> bool {
        let is_next = self.peek() == Some(byte);
        self.at += usize::from(is_next);
        is_next
    }

    fn must(&mut self, byte: u8) -> Result<(), String> {
        if self.takes(byte) { Ok(()) } else { self.wrong(&format!("expected `{}`", char::from(byte))) }
    }

    /// The members between two brackets.
    fn members(
        &mut self,
        [open, close]: [u8; 2],
        mut member: impl FnMut(&mut Self) -> Result<(), String>,
    ) -> Result<(), String> {
        self.must(open)?;
        self.depth += 1;
        if self.depth > DEPTH_MAX {
            return self.wrong(&format!("more than {DEPTH_MAX} values in each other"));
        }
        if !self.takes(close) {
            loop {
                member(self)?;
                if !self.takes(b',') {
                    self.must(close)?;
                    break;
                }
            }
        }
        self.depth -= 1;
        Ok(())
    }

    /// Reads an object whose names are distinct. `member` gets each name and must read its value.
    pub fn object(&mut self, mut member: impl FnMut(&str, &mut Self) -> Result<(), String>) -> Result<(), String> {
        let mut names = BTreeSet::new();
        self.members(*b"{}", |json| {
            let name = json.string()?;
            if names.contains(&name) {
                return json.wrong(&format!("a second `{name}` in one object"));
            }
            if names.len() == FIELDS_MAX {
                return json.wrong(&format!("more than {FIELDS_MAX} fields in one object"));
            }
            json.must(b':')?;
            member(&name, json)?;
            names.insert(name);
            Ok(())
        })
    }

    /// Reads a list. `member` must read each value.
    pub fn list(&mut self, member: impl FnMut(&mut Self) -> Result<(), String>) -> Result<(), String> {
        self.members(*b"[]", member)
    }

    pub fn string(&mut self) -> Result<String, String> {
        self.must(b'"')?;
        let mut bytes = Vec::new();
        loop {
            let Some(byte) = self.text.get(self.at).copied() else { return self.wrong("a text without an end") };
            self.at += 1;
            match byte {
                b'"' => break,
                b'\\' => {
                    let c = self.escaped()?;
                    bytes.extend_from_slice(c.encode_utf8(&mut [0; 4]).as_bytes());
                }
                0..0x20 => return self.wrong("a control character in a text"),
                other => bytes.push(other),
            }
        }
        String::from_utf8(bytes).or_else(|_| self.wrong("a text that is no UTF-8"))
    }

    fn escaped(&mut self) -> Result<char, String> {
        let byte = self.text.get(self.at).copied().unwrap_or(0);
        self.at += 1;
        Ok(match byte {
            b'"' | b'\\' | b'/' => char::from(byte),
            b'n' => '\n',
            b't' => '\t',
            b'r' => '\r',
            b'b' => '\u{8}',
            b'f' => '\u{c}',
            b'u' => {
                let digits = self.text.get(self.at..self.at + 4).filter(|d| d.iter().all(u8::is_ascii_hexdigit));
                let digits = digits.and_then(|d| std::str::from_utf8(d).ok());
                let code = digits.and_then(|d| u32::from_str_radix(d, 16).ok()).and_then(char::from_u32);
                let Some(c) = code else { return self.wrong("`\\u` without the four digits of a character") };
                self.at += 4;
                c
            }
            _ => return self.wrong("`\\` before a character that it does not escape"),
        })
    }

    pub fn number(&mut self) -> Result<f64, String> {
        self.peek();
        let rest = self.text.get(self.at..).unwrap_or_default();
        let length = rest.iter().take_while(|b| b.is_ascii_digit() || b"+-.eE".contains(b)).count();
        let text = rest.get(..length).and_then(|t| std::str::from_utf8(t).ok()).unwrap_or_default();
        match text.parse::<f64>() {
            Ok(n) if n.is_finite() => {
                self.at += length;
                Ok(n)
            }
            _ => self.wrong("expected a number"),
        }
    }

    /// A whole number from 0 to `most`.
    pub fn whole(&mut self, most: u64) -> Result<u64, String> {
        let at = self.at;
        let n = self.number()?;
        if n.fract() == 0.0 && (0.0..=most as f64).contains(&n) {
            return Ok(n as u64);
        }
        self.at = at;
        self.peek();
        self.wrong(&format!("expected a whole number, 0 to {most}"))
    }

    /// Passes over a value.
    pub fn skip(&mut self) -> Result<(), String> {
        match self.peek() {
            Some(b'{') => self.object(|_, json| json.skip()),
            Some(b'[') => self.list(Self::skip),
            Some(b'"') => self.string().map(drop),
            Some(b'-' | b'0'..=b'9') => self.number().map(drop),
            _ => {
                let rest = self.text.get(self.at..).unwrap_or_default();
                match [&b"true"[..], b"false", b"null"].into_iter().find(|w| rest.starts_with(w)) {
                    Some(word) => {
                        self.at += word.len();
                        Ok(())
                    }
                    None => self.wrong("expected a value"),
                }
            }
        }
    }

    /// Nothing but space is left.
    pub fn end(&mut self) -> Result<(), String> {
        if self.peek().is_none() { Ok(()) } else { self.wrong("text behind the value") }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn values_of_every_kind_are_passed_over_and_what_is_wrong_has_its_place() {
        let all = r#" {"a": [1, -2.5e3, "x\"\\é\u00e9\n"], "b": {"c": null, "d": [true, false, {}]}, "": []} "#;
        let mut json = Json::new(all);
        assert_eq!((json.skip(), json.end()), (Ok(()), Ok(())));
        let mut json = Json::new("\"\\u00e9é\\n\"");
        assert_eq!(json.string().unwrap(), "éé\n");
        for (text, what) in [
            ("{\"a\" 1}", "line 1, column 6: expected `:`"),
            ("[1,\n 2", "line 2, column 3: expected `]`"),
            ("[1,]", "line 1, column 4: expected a value"),
            ("{\"a\":\"", "a text without an end"),
            ("[1e999]", "expected a number"),
            ("\"\\ud800\"", "four digits"),
            ("\"\\u+0e9\"", "four digits"),
            ("\"\\x\"", "does not escape"),
            ("{\"a\":1,\n\"b\":{\"a\":2},\"\\u0061\":3}", "line 2, column 21: a second `a` in one object"),
            ("tru", "expected a value"),
        ] {
            let e = Json::new(text).skip().unwrap_err();
            assert!(e.contains(what), "{text}: {e}");
        }
        let deep = "[".repeat(100_000);
        assert!(Json::new(&deep).skip().unwrap_err().contains("more than 32"));
        let wide: Vec<String> = (0..2_000).map(|i| format!("\"{i}\":0")).collect();
        let wide = format!("{{{}}}", wide.join(","));
        assert!(Json::new(&wide).skip().unwrap_err().contains("more than 1024 fields"));
        let mut json = Json::new("1 2");
        json.skip().unwrap();
        assert!(json.end().unwrap_err().contains("column 3"));
    }

    proptest! {
        #[test]
        fn any_text_is_a_value_or_an_error(text in "[\\[\\]{},:\"\\\\u0-9eE.+\\-a-f \n]{0,60}") {
            let mut json = Json::new(&text);
            let _ = json.skip().and_then(|()| json.end());
        }
    }
}
