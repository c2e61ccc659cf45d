//! Compressed files: one Zstandard frame after the other, as `zstd` appends them and `pzstd` writes them.

use std::io::{self, BufRead, Error, Read};

use ruzstd::decoding::errors::{FrameDecoderError, ReadFrameHeaderError};
use ruzstd::decoding::{BlockDecodingStrategy, FrameDecoder};

/// The contents of all frames of a file. Anything after the last frame that is no frame is an error.
pub(super) struct Frames<R> {
    from: R,
    decoder: FrameDecoder,
    /// Frames begun so far.
    begun: usize,
}

impl<R: BufRead> Frames<R> {
    pub(super) fn new(from: R) -> Frames<R> {
        Frames { from, decoder: FrameDecoder::new(), begun: 0 }
    }

    /// Begins the next frame with contents; false: there is none.
    fn begin(&mut self) -> io::Result<bool> {
        while !self.from.fill_buf()?.is_empty() {
            match self.decoder.init(&mut self.from) {
                Ok(()) => {
                    self.begun += 1;
                    return Ok(true);
                }
                // Tables of contents and the like.
                Err(FrameDecoderError::ReadFrameHeaderError(ReadFrameHeaderError::SkipFrame { length, .. })) => {
                    let skipped = io::copy(&mut self.from.by_ref().take(length.into()), &mut io::sink())?;
                    if skipped < u64::from(length) {
                        return Err(cut_off());
                    }
                }
                Err(error) => return Err(self.explained(error)),
            }
        }
        Ok(false)
    }

    /// The decoder's own words are meant for people who write decoders.
    fn explained(&mut self, error: FrameDecoderError) -> Error {
        match error {
            FrameDecoderError::ReadFrameHeaderError(ReadFrameHeaderError::BadMagicNumber(_)) if self.begun == 0 => {
                Error::other(
                    "it is not compressed with Zstandard, as its name says: rename it, or compress it with zstd",
                )
            }
            FrameDecoderError::ReadFrameHeaderError(ReadFrameHeaderError::BadMagicNumber(_)) => Error::other(format!(
                "behind {} Zstandard frames stands what is none: cut that off, or write the file anew",
                self.begun
            )),
            FrameDecoderError::WindowSizeTooBig { requested, max } => Error::other(format!(
                "its Zstandard window has {requested} bytes, at most {max} are read: compress it without --long or --ultra"
            )),
            FrameDecoderError::DictNotProvided { .. } => {
                Error::other("it is compressed with a dictionary: compress it without one")
            }
            // What was wanted when nothing was left.
            _ if self.from.fill_buf().is_ok_and(<[u8]>::is_empty) => cut_off(),
            _ => damaged(),
        }
    }
}

impl<R: BufRead> Read for Frames<R> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        if into.is_empty() {
            return Ok(0);
        }
        while self.decoder.can_collect() == 0 {
            if !self.decoder.is_finished() {
                let decoded = self.decoder.decode_blocks(&mut self.from, BlockDecodingStrategy::UptoBlocks(1));
                decoded.map_err(|error| self.explained(error))?;
                continue;
            }
            let said = self.decoder.get_checksum_from_data();
            if said.is_some() && said != self.decoder.get_calculated_checksum() {
                return Err(damaged());
            }
            if !self.begin()? {
                return Ok(0);
            }
        }
        self.decoder.read(into)
    }
}

fn cut_off() -> Error {
    Error::other("it ends within a Zstandard frame: it was cut off, or is still being written")
}

fn damaged() -> Error {
    Error::other("its Zstandard data is damaged: copy or compress it anew")
}

#[cfg(test)]
mod tests {
    use super::*;
    use ruzstd::encoding::{CompressionLevel, compress_to_vec};

    fn frame(text: &str) -> Vec<u8> {
        compress_to_vec(text.as_bytes(), CompressionLevel::Fastest)
    }

    fn read(bytes: &[u8]) -> Result<String, String> {
        let mut text = String::new();
        Frames::new(bytes).read_to_string(&mut text).map_err(|error| error.to_string())?;
        Ok(text)
    }

    #[test]
    fn all_frames_are_read_and_others_skipped() {
        let skipped = [&[0x50, 0x2A, 0x4D, 0x18, 3, 0, 0, 0][..], b"abc"].concat();
        assert_eq!(read(&[frame("one\n"), skipped.clone(), frame("two\n"), frame("")].concat()).unwrap(), "one\ntwo\n");
        assert_eq!(read(&skipped).unwrap(), "");
        assert_eq!(read(b"").unwrap(), "");
    }

    #[test]
    fn what_is_no_frame_is_said() {
        let long: String = (0..20_000).map(|number| format!("{}\n", number * 7_919 % 10_007)).collect();
        let whole = frame(&long);
        assert_eq!(read(&whole).unwrap(), long);
        let mut changed = whole.clone();
        let middle = changed.len() / 2;
        changed[middle] ^= 1;
        for (bytes, words) in [
            (b"{\"timestamp\": 0}\n".to_vec(), "it is not compressed with Zstandard"),
            ([frame("one\n"), b"two, and more\n".to_vec()].concat(), "behind 1 Zstandard frames stands what is none"),
            (whole[..whole.len() / 2].to_vec(), "it ends within a Zstandard frame"),
            (whole[..whole.len() - 1].to_vec(), "it ends within a Zstandard frame"),
            (whole[..3].to_vec(), "it ends within a Zstandard frame"),
            ([frame("one\n"), whole[..9].to_vec()].concat(), "it ends within a Zstandard frame"),
            (changed, "damaged"),
        ] {
            let said = read(&bytes).unwrap_err();
            assert!(said.contains(words), "{words}: {said}");
        }
    }
}
