//! The 128 bytes that NCCL carries from a listener to the side that connects.
//!
//! ```text
//!  0 magic   4 version   5 rails   6 rail   7 addresses   8 listener   16 secret   32 host   40 state of the connecting side   48 addresses
//! ```
//!
//! The secret is random: a process that was not given the handle cannot connect. Addresses that do not fit follow over the first socket.

use crate::limits::RAILS_MAX;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use wire::{Malformed, Reader, Writer};

/// Bytes of a handle.
pub const HANDLE_BYTES: usize = 128;
/// Position of the connecting side's own number; 0 before its first call.
pub const STATE_AT: usize = 40;
const ADDRESSES_AT: usize = 48;
const MAGIC: u32 = 0x6c77_6e68;
const VERSION: u8 = 1;
/// Bytes of the secret.
pub const SECRET_BYTES: usize = 16;

/// Where one rail of a host listens.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct RailAddress {
    pub ip: IpAddr,
    /// Bits of the subnet.
    pub prefix: u8,
    pub port: u16,
}

impl RailAddress {
    pub fn socket(&self) -> SocketAddr {
        SocketAddr::new(self.ip, self.port)
    }

    /// True if both lie in one subnet.
    pub fn shares_subnet(&self, ip: IpAddr) -> bool {
        let cut = |v: u128, bits: u32, of: u32| if bits == 0 { 0 } else { v >> (of - bits.min(of)) };
        match (self.ip, ip) {
            (IpAddr::V4(a), IpAddr::V4(b)) => {
                let n = u32::from(self.prefix).min(32);
                cut(u32::from(a).into(), n, 32) == cut(u32::from(b).into(), n, 32)
            }
            (IpAddr::V6(a), IpAddr::V6(b)) => {
                let n = u32::from(self.prefix).min(128);
                cut(a.into(), n, 128) == cut(b.into(), n, 128)
            }
            _ => false,
        }
    }

    pub(crate) fn write(&self, to: &mut Writer) {
        match self.ip {
            IpAddr::V4(a) => to.u8(4).u8(self.prefix).u16(self.port).raw(&a.octets()),
            IpAddr::V6(a) => to.u8(6).u8(self.prefix).u16(self.port).raw(&a.octets()),
        };
    }

    pub(crate) fn read(r: &mut Reader<'_>) -> Result<Self, Malformed> {
        let (family, prefix, port) = (r.u8()?, r.u8()?, r.u16()?);
        let wrong = Malformed("an address has no such family");
        let ip = match family {
            4 => IpAddr::V4(Ipv4Addr::from(<[u8; 4]>::try_from(r.take(4)?).map_err(|_| wrong)?)),
            6 => IpAddr::V6(Ipv6Addr::from(<[u8; 16]>::try_from(r.take(16)?).map_err(|_| wrong)?)),
            _ => return Err(wrong),
        };
        Ok(RailAddress { ip, prefix, port })
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Handle {
    /// Number of the listener in its process.
    pub listener: u64,
    pub secret: [u8; SECRET_BYTES],
    /// The same on all processes of a host.
    pub host: u64,
    /// The rail of the device that listens.
    pub rail: u8,
    /// Number of rails of the listening host.
    pub rails: u8,
    /// Addresses of its first rails; with [`write`](Handle::write) those that fit.
    pub addresses: Vec<RailAddress>,
}

impl Handle {
    pub fn write(&self) -> [u8; HANDLE_BYTES] {
        let mut body = Writer::default();
        let mut fit = 0u8;
        for a in &self.addresses {
            let mut one = Writer::default();
            a.write(&mut one);
            if ADDRESSES_AT + body.0.len() + one.0.len() > HANDLE_BYTES {
                break;
            }
            body.raw(&one.0);
            fit += 1;
        }
        let mut w = Writer::default();
        w.u32(MAGIC)
            .u8(VERSION)
            .u8(self.rails)
            .u8(self.rail)
            .u8(fit)
            .u64(self.listener)
            .raw(&self.secret)
            .u64(self.host);
        w.u64(0).raw(&body.0);
        let mut bytes = [0; HANDLE_BYTES];
        bytes.iter_mut().zip(w.0).for_each(|(to, b)| *to = b);
        bytes
    }

    /// # Errors
    /// The bytes are no handle of this version.
    pub fn read(bytes: &[u8; HANDLE_BYTES]) -> Result<Self, Malformed> {
        let mut r = Reader::new(bytes);
        if r.u32()? != MAGIC || r.u8()? != VERSION {
            return Err(Malformed("the handle is not one of this version of linkwise"));
        }
        let (rails, rail, fit, listener) = (r.u8()?, r.u8()?, r.u8()?, r.u64()?);
        let secret = r.take(SECRET_BYTES)?.try_into().map_err(|_| Malformed("no secret"))?;
        let (host, _state) = (r.u64()?, r.u64()?);
        if usize::from(rails) > RAILS_MAX || rail >= rails || fit == 0 || fit > rails {
            return Err(Malformed("the handle has wrong numbers of rails"));
        }
        let addresses = (0..fit).map(|_| RailAddress::read(&mut r)).collect::<Result<_, _>>()?;
        Ok(Handle { listener, secret, host, rail, rails, addresses })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn address() -> impl Strategy<Value = RailAddress> {
        (any::<bool>(), any::<u128>(), any::<u8>(), any::<u16>()).prop_map(|(four, a, prefix, port)| {
            let ip = if four { IpAddr::V4((a as u32).into()) } else { IpAddr::V6(a.into()) };
            RailAddress { ip, prefix, port }
        })
    }

    proptest! {
        #[test]
        fn a_handle_carries_the_addresses_that_fit(addresses in proptest::collection::vec(address(), 1..=16), listener: u64, secret: [u8; 16]) {
            let rails = addresses.len() as u8;
            let h = Handle { listener, secret, host: 3, rail: rails - 1, rails, addresses };
            let read = Handle::read(&h.write()).unwrap();
            let n = read.addresses.len();
            prop_assert!(n >= 4.min(h.addresses.len()));
            prop_assert_eq!(&read.addresses[..], &h.addresses[..n]);
            prop_assert_eq!((read.listener, read.secret, read.rails), (listener, secret, rails));
        }

        #[test]
        fn any_128_bytes_are_a_handle_or_an_error(mut bytes in proptest::collection::vec(any::<u8>(), 128), head: bool) {
            if head {
                bytes[..5].copy_from_slice(&[0x68, 0x6e, 0x77, 0x6c, 1]);
            }
            if let Ok(h) = Handle::read(&bytes.try_into().unwrap()) {
                prop_assert!(h.addresses.len() <= RAILS_MAX && h.rail < h.rails);
            }
        }
    }

    #[test]
    fn subnets_are_compared_by_their_prefix() {
        let a = RailAddress { ip: "10.1.2.3".parse().unwrap(), prefix: 24, port: 0 };
        assert!(a.shares_subnet("10.1.2.9".parse().unwrap()) && !a.shares_subnet("10.1.3.3".parse().unwrap()));
        assert!(!a.shares_subnet("::1".parse().unwrap()));
        assert!(RailAddress { prefix: 0, ..a }.shares_subnet("1.1.1.1".parse().unwrap()));
    }
}
