//! ZMTP's commands: a name with its length before it, and its data.

pub(super) const READY: &[u8] = b"\x05READY";
pub(super) const SUBSCRIBE: &[u8] = b"\x09SUBSCRIBE";
pub(super) const PONG: &[u8] = b"\x04PONG";
/// A PING whose time to live is 0, so that the peer need not expect another one.
pub(super) const PING_WITHOUT_LIMIT: &[u8] = b"\x04PING\0\0";

const SOCKET_TYPE: &[u8] = b"Socket-Type";
/// Longest context of a PING.
const CONTEXT_BYTES_MAX: usize = 16;

/// Splits a command into its name and the rest.
pub(super) fn name(command: &[u8]) -> Option<(&[u8], &[u8])> {
    let (length, rest) = command.split_first()?;
    rest.split_at_checked(usize::from(*length)).filter(|(name, _)| !name.is_empty())
}

/// Writes the property of a READY that names the kind of socket.
pub(super) fn socket_type(kind: &[u8]) -> Vec<u8> {
    let mut property = vec![SOCKET_TYPE.len() as u8];
    property.extend_from_slice(SOCKET_TYPE);
    property.extend((kind.len() as u32).to_be_bytes());
    property.extend_from_slice(kind);
    property
}

/// Returns the kind of socket that these properties name; `None` if they are malformed or name none.
pub(super) fn socket_type_of(properties: &[u8]) -> Option<&[u8]> {
    let (mut rest, mut kind) = (properties, None);
    while !rest.is_empty() {
        let (name, after) = name(rest)?;
        let (length, after) = after.split_first_chunk()?;
        let (value, after) = after.split_at_checked(u32::from_be_bytes(*length) as usize)?;
        if name.eq_ignore_ascii_case(SOCKET_TYPE) {
            kind = Some(value);
        }
        rest = after;
    }
    kind
}

/// Returns the context of a PING, which a PONG has to repeat. The two bytes before it are how long the peer waits for
/// the next PING.
pub(super) fn ping_context(rest: &[u8]) -> Option<&[u8]> {
    let (_, context) = rest.split_first_chunk::<2>()?;
    (context.len() <= CONTEXT_BYTES_MAX).then_some(context)
}
