//! Clients that send nonsense, too much, or too slowly.

use std::io::Write;
use std::sync::Arc;
use std::time::Duration;

use fstitch_core::Seed;
use fstitch_nbd::{MemExport, Options, Server, Single};

use crate::bytes::survive;
use crate::client::*;

/// Requests and options with lengths, flags and magics that are right, nearly right, or anything.
fn nonsense(random: &mut Seed) -> Vec<u8> {
    let mut bytes = vec![u8::try_from(random.below(32)).unwrap()];
    for _ in 0..random.below(12) {
        match random.below(4) {
            0 => {
                bytes.extend(b"IHAVEOPT");
                bytes.extend(u32::try_from(random.below(13)).unwrap().to_be_bytes());
                let len = random.below(30);
                bytes.extend(u32::try_from(len).unwrap().to_be_bytes());
                let content = (0..len).map(|_| u8::try_from(random.below(4)).unwrap());
                bytes.extend(content.collect::<Vec<_>>());
            }
            1 | 2 => {
                let is_extended = random.chance(1, 3);
                let magic: u32 = if is_extended { 0x21e4_1c71 } else { 0x2560_9513 };
                bytes.extend(magic.to_be_bytes());
                bytes.extend(u16::try_from(random.below(64)).unwrap().to_be_bytes());
                bytes.extend(u16::try_from(random.below(9)).unwrap().to_be_bytes());
                bytes.extend(random.next_u64().to_be_bytes());
                bytes.extend((random.below(1 << 21)).to_be_bytes());
                let len = random.below(3000);
                if is_extended {
                    bytes.extend(len.to_be_bytes());
                } else {
                    bytes.extend(u32::try_from(len).unwrap().to_be_bytes());
                }
                if random.chance(1, 2) {
                    bytes.resize(bytes.len() + usize::try_from(len).unwrap(), 1);
                }
            }
            _ => bytes.extend((0..random.below(20)).map(|at| u8::try_from(at * 11).unwrap())),
        }
    }
    if random.chance(1, 2) {
        let at = usize::try_from(random.below(u64::try_from(bytes.len()).unwrap())).unwrap();
        bytes[at] ^= 1 << random.below(8);
    }
    bytes
}

#[test]
fn any_bytes_are_answered_or_end_the_connection() {
    let mut heard = 0;
    for seed in 0..3000 {
        heard += survive(&nonsense(&mut Seed::new(seed)));
    }
    assert!(heard > 3000 * 40, "most get beyond the greeting: {heard} bytes");
}

/// The canary: what is well said is understood, so that the test above does test something.
#[test]
fn the_same_way_in_leads_to_the_export() {
    let request = |magic: u32, len: &[u8]| {
        let mut bytes = magic.to_be_bytes().to_vec();
        bytes.extend([0; 4 + 8 + 8]);
        bytes.extend(len);
        bytes
    };
    let cases = [
        (9, request(0x2560_9513, &1000_u32.to_be_bytes()), 16 + 1000),
        (11, request(0x2560_9513, &1000_u32.to_be_bytes()), 28 + 1000),
        (13, request(0x21e4_1c71, &1000_u64.to_be_bytes()), 40 + 1000),
    ];
    for (way, request, expected) in cases {
        let without = survive(&[way]);
        assert_eq!(survive(&[&[way], &request[..]].concat()) - without, expected, "{way}");
        assert_eq!(survive(&[&[way | 16], &request[..]].concat()) - without, expected, "{way}, in pieces");
    }
}

#[test]
fn what_is_no_request_ends_the_connection() {
    for payload in [&b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"[..], &[0; 28]] {
        let server = server(Arc::new(MemExport::new(1 << 20)));
        let (mut client, thread) = connect(&server);
        client.greet();
        client.go("");
        client.put(payload);
        assert!(client.is_closed());
        thread.join().unwrap();
        assert_eq!(server.stats().malformed.get(), 1);
    }
}

#[test]
fn a_payload_beyond_the_limit_ends_the_connection_before_it_is_read() {
    let mut client = ready(Arc::new(MemExport::new(1 << 40)), false);
    client.ask(0, WRITE, 1, (0, (32 << 20) + 1), &[]);
    assert!(client.is_closed());
}

#[test]
fn a_client_that_says_nothing_is_not_waited_for() {
    let options = Options { negotiation_max: Duration::from_millis(200), ..Options::default() };
    let export = Arc::new(Single(Arc::new(MemExport::new(1))));
    let server = Arc::new(Server::new(export, options).unwrap());
    let (mut silent, _) = connect(&server);
    silent.take::<18>();
    assert!(silent.is_closed());
    // Nor is one that says a little again and again.
    let (mut slow, thread) = connect(&server);
    slow.greet();
    let header = [&b"IHAVEOPT"[..], &[0, 0, 0, 99, 0, 0, 0xff, 0]].concat();
    let mut sent = slow.stream.write_all(&header);
    while sent.is_ok() && !thread.is_finished() {
        std::thread::sleep(Duration::from_millis(20));
        sent = slow.stream.write_all(&[0]);
    }
    thread.join().unwrap();
    // Whoever has chosen may be silent as long as he likes.
    let (mut client, _) = connect(&server);
    client.greet();
    client.go("");
    std::thread::sleep(Duration::from_millis(500));
    assert_eq!(client.read(0, 1), [0]);
}

#[test]
fn a_client_that_does_not_listen_is_let_go_when_it_leaves() {
    let server = server(Arc::new(MemExport::new(64 << 20)));
    let (mut client, thread) = connect(&server);
    client.greet();
    client.go("");
    for cookie in 0..100 {
        client.ask(0, READ, cookie, (0, 1 << 20), &[]);
    }
    drop(client);
    thread.join().unwrap();
    assert_eq!(server.connections(), 0);
}
