//! A client of NBD that keeps so many writes in flight on one connection, from one thread: its processor time can be told from the
//! server's, also in the same process.

use std::io::{BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;

use anyhow::{Context, Result, ensure};

use crate::workload::FILLER;

/// Bytes of a request.
pub const REQUEST: usize = 4096;

const GREETING: &[u8; 16] = b"NBDMAGICIHAVEOPT";
const OPTION_REPLY: u64 = 0x0003_e889_0455_65a9;
const REQUEST_MAGIC: u32 = 0x2560_9513;
const REPLY_MAGIC: u32 = 0x6744_6698;
/// Fixed newstyle, and no zeroes behind the export: what the server offers and the client takes.
const FLAGS: u32 = 3;
const OPTION_GO: u32 = 7;
const REPLY_ACK: u32 = 1;
const REPLY_INFO: u32 = 3;
const COMMAND_WRITE: u16 = 1;
const COMMAND_DISCONNECT: u16 = 2;
const COMMAND_FLUSH: u16 = 3;
const FLAG_FUA: u16 = 1;

/// A connection to an export.
pub struct Client {
    replies: BufReader<UnixStream>,
    stream: UnixStream,
    /// Bytes of the export.
    pub size: u64,
    message: Vec<u8>,
}

impl Client {
    /// Connects to the export of that name.
    pub fn new(socket: &Path, name: &str) -> Result<Self> {
        let stream = UnixStream::connect(socket).with_context(|| socket.display().to_string())?;
        let replies = BufReader::new(stream.try_clone()?);
        let mut client = Self { replies, stream, size: 0, message: Vec::new() };
        client.negotiate(name).context("negotiating")?;
        Ok(client)
    }

    fn negotiate(&mut self, name: &str) -> Result<()> {
        ensure!(&self.bytes::<16>()? == GREETING, "no server of NBD");
        let flags = u16::from_be_bytes(self.bytes()?);
        ensure!(u32::from(flags) & FLAGS == FLAGS, "an old server");
        let len = u32::try_from(name.len())?;
        let mut asked = FLAGS.to_be_bytes().to_vec();
        asked.extend(&GREETING[8..]);
        for number in [OPTION_GO, len + 6, len] {
            asked.extend(number.to_be_bytes());
        }
        asked.extend(name.as_bytes());
        // No information is asked for: the size comes anyhow.
        asked.extend([0, 0]);
        self.stream.write_all(&asked)?;
        loop {
            ensure!(u64::from_be_bytes(self.bytes()?) == OPTION_REPLY, "not an answer to an option");
            let [_, kind, len] = [self.number()?, self.number()?, self.number()?];
            let mut data = vec![0; usize::try_from(len)?];
            self.replies.read_exact(&mut data)?;
            match kind {
                REPLY_ACK => return Ok(()),
                // Information of type 0 is the size, and flags.
                REPLY_INFO if data.starts_with(&[0, 0]) && data.len() == 12 => {
                    self.size = u64::from_be_bytes(data[2..10].try_into()?);
                }
                REPLY_INFO => {}
                _ => anyhow::bail!("the export is refused: {kind:#x} {}", String::from_utf8_lossy(&data)),
            }
        }
    }

    fn bytes<const N: usize>(&mut self) -> Result<[u8; N]> {
        let mut bytes = [0; N];
        self.replies.read_exact(&mut bytes)?;
        Ok(bytes)
    }

    fn number(&mut self) -> Result<u32> {
        Ok(u32::from_be_bytes(self.bytes()?))
    }

    fn send(&mut self, command: u16, fua: bool, offset: u64, len: usize) -> Result<()> {
        let flags = if fua { FLAG_FUA } else { 0 };
        self.message.clear();
        self.message.extend(REQUEST_MAGIC.to_be_bytes());
        self.message.extend(flags.to_be_bytes());
        self.message.extend(command.to_be_bytes());
        // A cookie: the offset tells requests apart well enough.
        self.message.extend(offset.to_be_bytes());
        self.message.extend(offset.to_be_bytes());
        self.message.extend(u32::try_from(len)?.to_be_bytes());
        if command == COMMAND_WRITE {
            self.message.extend(&FILLER[..len]);
        }
        Ok(self.stream.write_all(&self.message)?)
    }

    fn answer(&mut self) -> Result<()> {
        let answer: [u8; 16] = self.bytes()?;
        ensure!(answer[..4] == REPLY_MAGIC.to_be_bytes(), "not an answer");
        let error = u32::from_be_bytes(answer[4..8].try_into()?);
        ensure!(error == 0, "the server answers with error {error}");
        Ok(())
    }

    /// Writes at all these offsets, so many at a time, and waits for the last answer.
    pub fn write(&mut self, offsets: &[u64], in_flight: usize, fua: bool) -> Result<()> {
        let mut sent = 0;
        for answered in 0..offsets.len() {
            while sent < offsets.len() && sent - answered < in_flight {
                self.send(COMMAND_WRITE, fua, offsets[sent], REQUEST)?;
                sent += 1;
            }
            self.answer()?;
        }
        Ok(())
    }

    /// Makes everything stable that was answered.
    pub fn flush(&mut self) -> Result<()> {
        self.send(COMMAND_FLUSH, false, 0, 0)?;
        self.answer()
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        // A server that is gone need not be told.
        let _ = self.send(COMMAND_DISCONNECT, false, 0, 0);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use fstitch_nbd::{Export, Kind, MemExport, Options, Server, Single};

    use super::*;

    #[test]
    fn what_is_written_is_there_and_all_of_it_is_answered() {
        let directory = tempfile::tempdir().unwrap();
        let socket = directory.path().join("socket");
        let memory = Arc::new(MemExport::new(1 << 20));
        let server = Server::new(Arc::new(Single(Arc::clone(&memory) as _)), Options::default()).unwrap();
        server.listen_unix(&socket).unwrap();
        let mut client = Client::new(&socket, "any").unwrap();
        assert_eq!(client.size, 1 << 20);
        let offsets: Vec<u64> = (0..100).map(|no| no * 2 * 4096).collect();
        client.write(&offsets, 32, true).unwrap();
        client.flush().unwrap();
        assert_eq!((server.stats().requests(Kind::Write), server.stats().requests(Kind::Flush)), (100, 1));
        let mut bytes = vec![0; 2 * 4096];
        memory.read(99 * 2 * 4096, &mut bytes).unwrap();
        assert!(
            bytes[..4096].iter().all(|byte| *byte == FILLER[0])
                && bytes[4096..].iter().all(|byte| *byte == 0)
        );
        let error = client.write(&[1 << 20], 1, false).unwrap_err().to_string();
        assert!(error.contains("answers with error"), "{error}");
    }
}
