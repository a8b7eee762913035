//! Every request in every dialect.

use std::sync::Arc;

use fstitch_core::MemDevice;
use fstitch_nbd::{BlockSizes, DeviceExport, Features, MemExport};

use crate::client::*;
use crate::exports::{FAILS, Odd};

const INVAL: u32 = 22;
const NOSPC: u32 = 28;

/// What must be refused is, with the right number, and the connection goes on.
fn refusals(client: &mut Client, size: u64) {
    let payload = [9; 512];
    let cases = [
        (0, READ, (size, 1), INVAL),
        (0, READ, (size - 1, 2), INVAL),
        (0, READ, (u64::MAX, 2), INVAL),
        (0, READ, (0, 0), INVAL),
        (0, READ, (0, 0xffff_ffff), INVAL),
        (NO_HOLE, READ, (0, 1), INVAL),
        (0, TRIM, (size, 1), INVAL),
        (0, WRITE_ZEROES, (size - 1, 2), NOSPC),
        (0, WRITE_ZEROES, (u64::MAX - 1, 2), NOSPC),
        (0, CACHE, (size, 1), INVAL),
        (0, FLUSH, (1, 0), INVAL),
        (0, 8, (0, 0), INVAL),
        (0, 0xffff, (0, 0), INVAL),
        (1 << 15, FLUSH, (0, 0), INVAL),
    ];
    for (flags, command, place, errno) in cases {
        assert_eq!(client.errno(flags, command, place, &[]), errno, "{command} {place:?}");
    }
    let write = if client.is_extended { PAYLOAD_LEN } else { 0 };
    assert_eq!(client.errno(write, WRITE, (size - 1, 512), &payload), NOSPC);
    assert_eq!(client.errno(write | DF, WRITE, (0, 512), &payload), INVAL);
    assert_eq!(client.errno(write, WRITE, (u64::MAX - 5, 512), &payload), NOSPC);
}

/// What can be done is.
fn changes(client: &mut Client) {
    assert_eq!(client.errno(0, FLUSH, (0, 0), &[]), 0);
    assert_eq!(client.errno(FUA, TRIM, (0, 4096), &[]), 0);
    assert_eq!(client.errno(FUA | NO_HOLE | FAST_ZERO, WRITE_ZEROES, (1, 100), &[]), 0);
    assert_eq!(client.errno(FUA, CACHE, (0, 4096), &[]), 0);
    assert_eq!(client.errno(FUA, FLUSH, (0, 0), &[]), 0, "clients set it everywhere");
}

#[test]
fn simple_replies() {
    let mut client = ready(Arc::new(MemExport::new(1 << 20)), false);
    client.write(1000, &[7; 5000]);
    assert_eq!(client.read(999, 5002), [&[0][..], &[7; 5000], &[0]].concat());
    refusals(&mut client, 1 << 20);
    changes(&mut client);
    assert_eq!(client.errno(DF, READ, (0, 1), &[]), INVAL, "not offered");
    assert_eq!(client.errno(0, BLOCK_STATUS, (0, 512), &[]), INVAL);
    assert_eq!(client.read(5999, 2), [7, 0]);
}

#[test]
fn structured_replies_leave_holes_out() {
    let mut client = ready(Arc::new(MemExport::new(1 << 20)), true);
    client.write(100_000, &[7; 5000]);
    let mut expected = vec![0; 300_000];
    expected[100_000..105_000].fill(7);
    let (bytes, holes) = client.read_chunks(0, 0, 300_000);
    assert!(bytes == expected);
    assert_eq!(holes, 2, "before and behind the piece that was written");
    let (bytes, holes) = client.read_chunks(DF, 0, 300_000);
    assert!(bytes == expected);
    assert_eq!(holes, 0, "one chunk was asked for");
    assert_eq!(client.read_chunks(0, 99_999, 2), (vec![0, 7], 0), "too short to ask");
    refusals(&mut client, 1 << 20);
    changes(&mut client);
}

#[test]
fn extended_headers() {
    let (mut client, _) = connect(&server(Arc::new(MemExport::new(1 << 40))));
    client.greet();
    client.option(EXTENDED_HEADERS, &[]);
    client.option(SET_META_CONTEXT, &contexts("", &["base:allocation"]));
    client.go("");
    client.is_extended = true;
    client.write(100_000, &[7; 5000]);
    let (bytes, holes) = client.read_chunks(0, 0, 300_000);
    assert_eq!((bytes[99_999], bytes[100_000], bytes[105_000], holes), (0, 7, 0, 2));
    refusals(&mut client, 1 << 40);
    changes(&mut client);
    assert_eq!(client.errno(0, WRITE_ZEROES, (0, 1 << 39), &[]), 0, "more than 32 bits");
    client.ask(0, BLOCK_STATUS, 9, (0, 1 << 40), &[]);
    let chunk = client.chunk(0);
    assert_eq!((chunk.kind, chunk.is_last, chunk.cookie), (6, true, 9));
    let expected =
        [&1_u32.to_be_bytes()[..], &1_u32.to_be_bytes(), &(1_u64 << 40).to_be_bytes(), &3_u64.to_be_bytes()];
    assert_eq!(chunk.bytes, expected.concat());
    // A payload that this request cannot have is skipped.
    assert_eq!(client.errno(PAYLOAD_LEN, TRIM, (0, 700), &[1; 700]), INVAL);
    assert_eq!(client.errno(PAYLOAD_LEN, READ, (0, 70_000), &[1; 70_000]), INVAL);
    // A client that forgets the flag has sent the payload all the same.
    assert_eq!(client.errno(0, WRITE, (0, 512), &[1; 512]), 0);
    assert_eq!(client.read_chunks(0, 511, 2), (vec![1, 0], 0));
}

#[test]
fn status_tells_of_holes() {
    let mut client = ready(Arc::new(MemExport::new(1 << 20)), true);
    client.write(65_536, &[1]);
    client.ask(0, BLOCK_STATUS, 3, (0, 1 << 20), &[]);
    let word = |word: u32| word.to_be_bytes();
    let extents = [1, 65_536, 3, 65_536, 0, (1 << 20) - 131_072, 3].map(word).concat();
    let chunk = Chunk { is_last: true, kind: 5, cookie: 3, bytes: extents };
    assert_eq!(client.chunk(0), chunk);
    client.ask(REQ_ONE, BLOCK_STATUS, 3, (65_000, 1000), &[]);
    assert_eq!(client.chunk(0).bytes, [1, 536, 3].map(word).concat());
    assert_eq!(client.errno(0, BLOCK_STATUS, (1 << 20, 1), &[]), INVAL);
}

#[test]
fn errors_come_with_a_message_where_there_is_room() {
    for is_structured in [false, true] {
        let mut client = ready(Arc::new(Odd::new()), is_structured);
        for (command, payload) in [(READ, &[][..]), (WRITE, &[1; 10][..])] {
            client.ask(0, command, 8, (FAILS, 10), payload);
            let chunk = client.chunk(0);
            assert_eq!(chunk.bytes[..4], [0, 0, 0, 5], "no data behind an error");
            let text = String::from_utf8_lossy(&chunk.bytes[4..]).into_owned();
            assert_eq!(text.contains("on fire"), is_structured, "{text}");
        }
        // It was not faster, so it is not done.
        assert_eq!(client.errno(FAST_ZERO, WRITE_ZEROES, (0, 10), &[]), 95);
        assert_eq!(client.errno(0, WRITE_ZEROES, (0, 10), &[]), 0);
    }
}

#[test]
fn read_only_exports_are_not_changed() {
    let features = Features { is_read_only: true, ..Features::default() };
    let (mut client, _) = connect(&server(Arc::new(MemExport::with_features(4096, features))));
    client.greet();
    assert_eq!(client.go("").1, 0b100_0000_0111, "cache, flush, read-only");
    assert_eq!(client.errno(0, WRITE, (0, 3), b"abc"), 1);
    assert_eq!(client.errno(0, TRIM, (0, 3), &[]), 1);
    assert_eq!(client.errno(0, WRITE_ZEROES, (0, 3), &[]), 1);
    assert_eq!(client.read(0, 3), [0; 3]);
    assert_eq!(client.errno(0, FLUSH, (0, 0), &[]), 0);
}

#[test]
fn minimum_blocks_are_kept() {
    let blocks = BlockSizes { minimum: 512, preferred: 4096, maximum: 8192 };
    let mut client = ready(Arc::new(MemExport::with_blocks(65_000, blocks)), false);
    assert_eq!(client.errno(0, READ, (1, 512), &[]), INVAL);
    assert_eq!(client.errno(0, READ, (0, 513), &[]), INVAL);
    assert_eq!(client.errno(0, WRITE, (512, 5), b"abcde"), INVAL);
    assert_eq!(client.errno(0, READ, (0, 8192 + 512), &[]), INVAL, "longer than the maximum");
    assert_eq!(client.errno(0, TRIM, (0, 8192 + 512), &[]), 0, "nothing is sent for it");
    assert_eq!(client.errno(0, READ, (64_512, 512), &[]), INVAL, "the last piece is not served");
    assert_eq!(client.read(64_000, 512), [0; 512]);
}

#[test]
fn a_new_size_counts_at_once() {
    let memory = Arc::new(MemExport::new(8192));
    let server = server(memory.clone());
    let (mut old, _) = connect(&server);
    old.greet();
    assert_eq!(old.go("").0, 8192);
    memory.resize(4096);
    assert_eq!(old.errno(0, READ, (4096, 1), &[]), INVAL);
    assert_eq!(old.errno(0, WRITE, (4096, 1), &[1]), NOSPC);
    memory.resize(16_384);
    let (mut new, _) = connect(&server);
    new.greet();
    assert_eq!(new.go("").0, 16_384);
    new.write(16_000, &[3]);
    assert_eq!(old.read(16_000, 1), [3], "who knows of it may use it");
}

#[test]
fn devices_are_exports() {
    let device = Arc::new(MemDevice::new(4096, 64));
    let mut client = ready(Arc::new(DeviceExport::new(device.clone(), 512, false).unwrap()), true);
    client.write(3584, &[5; 1024]);
    client.write(8192, &[6; 3 * 4096]);
    assert_eq!(client.read_chunks(0, 3584, 512).0, [5; 512]);
    let image = device.image();
    assert_eq!((image[3583], image[3584], image[4607], image[4608]), (0, 5, 5, 0));
    assert_eq!((image[8191], image[8192], image[20_479], image[20_480]), (0, 6, 6, 0));
    assert_eq!(client.errno(FUA, WRITE_ZEROES, (512, 16_384), &[]), 0);
    let image = device.image();
    assert!(image[512..16_896].iter().all(|&byte| byte == 0));
    assert_eq!(image[16_896], 6);
}
