//! Address ranges such as `10.0.0.0/8`.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// All addresses that share the first `bits` bits with `base`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Cidr {
    base: IpAddr,
    bits: u8,
}

impl Cidr {
    /// This machine. Not all of 127.0.0.0/8: a mesh's sidecar proxy connects from 127.0.0.6 on behalf of anybody.
    pub fn loopback() -> Vec<Cidr> {
        vec![
            Cidr { base: IpAddr::V4(Ipv4Addr::LOCALHOST), bits: 32 },
            Cidr { base: IpAddr::V6(Ipv6Addr::LOCALHOST), bits: 128 },
        ]
    }

    /// All addresses.
    pub fn everywhere() -> Vec<Cidr> {
        vec![
            Cidr { base: IpAddr::V4(Ipv4Addr::UNSPECIFIED), bits: 0 },
            Cidr { base: IpAddr::V6(Ipv6Addr::UNSPECIFIED), bits: 0 },
        ]
    }

    /// The first and the last address of the range.
    pub fn ends(&self) -> [IpAddr; 2] {
        match self.base {
            IpAddr::V4(base) => {
                let beyond = u32::MAX.checked_shr(self.bits.into()).unwrap_or(0);
                [base.to_bits() & !beyond, base.to_bits() | beyond].map(|bits| IpAddr::V4(Ipv4Addr::from_bits(bits)))
            }
            IpAddr::V6(base) => {
                let beyond = u128::MAX.checked_shr(self.bits.into()).unwrap_or(0);
                [base.to_bits() & !beyond, base.to_bits() | beyond].map(|bits| IpAddr::V6(Ipv6Addr::from_bits(bits)))
            }
        }
    }

    /// Whether `address` lies in the range. An IPv4 peer of a dual-stack listener counts as IPv4.
    pub fn contains(&self, address: IpAddr) -> bool {
        match (self.base, address.to_canonical()) {
            (IpAddr::V4(base), IpAddr::V4(address)) => {
                let shift = 32 - u32::from(self.bits.min(32));
                shift == 32 || base.to_bits() >> shift == address.to_bits() >> shift
            }
            (IpAddr::V6(base), IpAddr::V6(address)) => {
                let shift = 128 - u32::from(self.bits.min(128));
                shift == 128 || base.to_bits() >> shift == address.to_bits() >> shift
            }
            _ => false,
        }
    }
}

impl FromStr for Cidr {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || format!("\"{text}\" is not an address range; write one such as \"10.0.0.0/8\" or \"::1/128\"");
        let (base, bits) = text.split_once('/').map_or((text, None), |(base, bits)| (base, Some(bits)));
        let base: IpAddr = base.parse().map_err(|_| wrong())?;
        let most = if base.is_ipv4() { 32 } else { 128 };
        let bits: u8 = bits.map_or(Ok(most), |bits| bits.parse().map_err(|_| wrong()))?;
        if bits > most {
            return Err(format!("\"{text}\" has more than {most} bits"));
        }
        // An IPv4-mapped range is the IPv4 range: `contains` takes such peers as IPv4.
        Ok(match (base.to_canonical(), bits.checked_sub(96)) {
            (IpAddr::V4(mapped), Some(bits)) if base.is_ipv6() => Cidr { base: IpAddr::V4(mapped), bits },
            _ => Cidr { base, bits },
        })
    }
}

impl fmt::Display for Cidr {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{}/{}", self.base, self.bits)
    }
}

impl TryFrom<String> for Cidr {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

impl From<Cidr> for String {
    fn from(range: Cidr) -> Self {
        range.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_hold_their_own_family() {
        let ten: Cidr = "10.0.0.0/8".parse().unwrap();
        assert!(ten.contains("10.255.0.1".parse().unwrap()));
        assert!(ten.contains("::ffff:10.1.1.1".parse().unwrap()));
        assert!(!ten.contains("11.0.0.1".parse().unwrap()));
        assert!(!ten.contains("::1".parse().unwrap()));
        let all: Cidr = "::/0".parse().unwrap();
        assert!(all.contains("2001:db8::1".parse().unwrap()));
        for (range, inside, outside) in [
            ("fd00::/8", "fdff::1", "fe80::1"),
            ("fd00::/8", "fd00::", "::1"),
            ("2001:db8::/33", "2001:db8:7fff::", "2001:db8:8000::"),
            ("2001:db8::/127", "2001:db8::1", "2001:db8::2"),
        ] {
            let holds = |address: &str| range.parse::<Cidr>().unwrap().contains(address.parse().unwrap());
            assert!(holds(inside) && !holds(outside), "{range}");
        }
        let one: Cidr = "192.0.2.7".parse().unwrap();
        assert_eq!(one.to_string(), "192.0.2.7/32");
        for (text, same) in
            [("::ffff:10.0.0.0/104", "10.0.0.0/8"), ("::ffff:192.0.2.7", "192.0.2.7/32"), ("::/96", "::/96")]
        {
            assert_eq!(text.parse::<Cidr>().unwrap().to_string(), same);
        }
        for (range, ends) in [
            ("10.1.2.3/8", ["10.0.0.0", "10.255.255.255"]),
            ("192.0.2.7", ["192.0.2.7"; 2]),
            ("10.0.0.0/0", ["0.0.0.0", "255.255.255.255"]),
            ("fd00::1/126", ["fd00::", "fd00::3"]),
            ("fd00::1", ["fd00::1"; 2]),
            ("::1/0", ["::", "ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff"]),
        ] {
            assert_eq!(range.parse::<Cidr>().unwrap().ends().map(|end| end.to_string()), ends, "{range}");
        }
        let own = |address: &str| Cidr::loopback().iter().any(|range| range.contains(address.parse().unwrap()));
        assert!(own("127.0.0.1") && own("::1") && own("::ffff:127.0.0.1"));
        assert!(!own("127.0.0.6") && !own("::6"), "a mesh's proxy");
        assert!("10.0.0.0/33".parse::<Cidr>().is_err());
        assert!("ten/8".parse::<Cidr>().is_err());
    }
}
