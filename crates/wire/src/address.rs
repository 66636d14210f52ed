use std::fmt;
use std::net::SocketAddr;

/// Longest name of a local socket, bytes. Linux allows 107.
const NAME_BYTES_MAX: usize = 100;

/// The address at which a process listens. Text form: `tcp:HOST:PORT` or `local:NAME`.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Address {
    Tcp(SocketAddr),
    /// Name of an abstract Unix socket.
    Local(String),
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Address::Tcp(a) => write!(f, "tcp:{a}"),
            Address::Local(n) => write!(f, "local:{n}"),
        }
    }
}

impl std::str::FromStr for Address {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.split_once(':') {
            Some(("tcp", a)) => a.parse().map(Address::Tcp).map_err(|e| format!("`{text}`: {e}")),
            Some(("local", n)) if !n.is_empty() && n.len() <= NAME_BYTES_MAX && !n.contains('\0') => {
                Ok(Address::Local(n.into()))
            }
            _ => Err(format!("`{text}` is not an address; write tcp:HOST:PORT or local:NAME")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_survive_formatting() {
        for text in ["tcp:127.0.0.1:80", "tcp:[::1]:80", "local:abc"] {
            assert_eq!(text.parse::<Address>().unwrap().to_string(), text);
        }
        for bad in ["", "tcp:", "tcp:host", "local:", "udp:1.2.3.4:5"] {
            assert!(bad.parse::<Address>().is_err(), "{bad}");
        }
    }
}
