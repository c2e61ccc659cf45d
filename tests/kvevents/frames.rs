//! ZeroMQ as bytes, for engines that are played.

/// Frames of one message.
pub fn message(frames: &[&[u8]]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for (place, frame) in frames.iter().enumerate() {
        let more = u8::from(place + 1 < frames.len());
        match u8::try_from(frame.len()) {
            Ok(length) => bytes.extend([more, length]),
            Err(_) => {
                bytes.push(more | 2);
                bytes.extend((frame.len() as u64).to_be_bytes());
            }
        }
        bytes.extend_from_slice(frame);
    }
    bytes
}
