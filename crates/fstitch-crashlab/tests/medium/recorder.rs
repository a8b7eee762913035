//! The recorder writes down what happened, in the order in which it did.

use fstitch_core::{BlockDevice, BlockKind, BlockNo, BlockWrite, MemDevice};
use fstitch_crashlab::Recorder;
use fstitch_crashlab::medium::{Event, Mark, RequestNo};

fn write(device: &dyn BlockDevice, blocks: &[u64], byte: u8) -> fstitch_core::Result<()> {
    let data = vec![byte; 512];
    let kind = BlockKind::Inode;
    let writes: Vec<_> =
        blocks.iter().map(|&no| BlockWrite { block: BlockNo(no), kind, data: &data }).collect();
    device.write(&writes)
}

fn names(events: &[Event]) -> Vec<String> {
    let name = |event: &Event| match event {
        Event::Write { request, block, kind, data, fua } => {
            assert!(!fua && *kind == BlockKind::Inode && data.len() == 512);
            format!("{} writes {block}", request.0)
        }
        Event::Discard { request, start, count } => format!("{} discards {start}+{count}", request.0),
        Event::Ack(request) => format!("{} done", request.0),
        Event::FlushIssued(request) => format!("{} flushes", request.0),
        Event::FlushAcked(request) => format!("{} flushed", request.0),
        Event::FlushFailed(request) => format!("{} failed", request.0),
        Event::Memory(access) => format!("{access:?}"),
        Event::Mark(mark) => format!("{mark:?}"),
    };
    events.iter().map(name).collect()
}

#[test]
fn the_log_tells_issue_and_acknowledgement() {
    let recorder = Recorder::new(MemDevice::new(512, 8));
    recorder.mark(Mark::Begin(0));
    write(&recorder, &[3, 5], 1).unwrap();
    recorder.flush().unwrap();
    recorder.discard(BlockNo(4), 2).unwrap();
    recorder.mark(Mark::End(0));
    let log = recorder.take();
    let expected = [
        "Begin(0)",
        "0 writes 3",
        "1 writes 5",
        "0 done",
        "1 done",
        "2 flushes",
        "2 flushed",
        "3 discards 4+2",
        "3 done",
        "End(0)",
    ];
    assert_eq!(names(&log.events), expected);
    assert_eq!(log.writes(), 2);
    // Recording goes on, and requests are counted on.
    write(&recorder, &[0], 2).unwrap();
    assert_eq!(names(&recorder.take().events), ["4 writes 0", "4 done"]);
    assert_eq!(recorder.device().image()[..2], [2, 2], "the device below got it");
}

#[test]
fn what_the_device_refuses_did_not_happen() {
    let recorder = Recorder::new(MemDevice::new(512, 8));
    write(&recorder, &[8], 1).unwrap_err();
    let short = BlockWrite { block: BlockNo(0), kind: BlockKind::Data, data: &[1; 100] };
    recorder.write(&[short]).unwrap_err();
    drop(recorder.discard(BlockNo(7), u64::MAX));
    assert!(recorder.take().events.is_empty());
}

/// A device whose writes and flushes fail after they may have done something.
struct Failing(MemDevice);

impl BlockDevice for Failing {
    fn geometry(&self) -> fstitch_core::Geometry {
        self.0.geometry()
    }
    fn read(&self, reads: &mut [fstitch_core::BlockRead<'_>]) -> fstitch_core::Result<()> {
        self.0.read(reads)
    }
    fn write(&self, _: &[BlockWrite<'_>]) -> fstitch_core::Result<()> {
        Err(fstitch_core::Errno::IO.into())
    }
    fn flush(&self) -> fstitch_core::Result<()> {
        Err(fstitch_core::Errno::IO.into())
    }
    fn discard(&self, _: BlockNo, _: u64) -> fstitch_core::Result<()> {
        Err(fstitch_core::Errno::IO.into())
    }
}

#[test]
fn failed_requests_are_issued_and_never_acknowledged() {
    let recorder = Recorder::new(Failing(MemDevice::new(512, 8)));
    write(&recorder, &[3], 1).unwrap_err();
    recorder.flush().unwrap_err();
    recorder.discard(BlockNo(0), 1).unwrap_err();
    let log = recorder.take();
    assert_eq!(names(&log.events), ["0 writes 3", "1 flushes", "1 failed", "2 discards 0+1"]);
    assert!(!log.events.contains(&Event::Ack(RequestNo(0))));
}

/// Several threads share a recorder: no request is lost or named twice, and none is done before it was issued.
#[test]
fn threads_are_recorded_without_loss() {
    const ROUNDS: u64 = 50;
    let recorder = Recorder::new(MemDevice::new(512, 8));
    std::thread::scope(|scope| {
        for thread in 0..4_u8 {
            let recorder = &recorder;
            scope.spawn(move || {
                for _ in 0..ROUNDS {
                    write(recorder, &[u64::from(thread), u64::from(thread) + 4], thread).unwrap();
                    recorder.flush().unwrap();
                }
            });
        }
    });
    let mut open = std::collections::BTreeSet::new();
    let mut issued = 0;
    for event in recorder.take().events {
        match event {
            Event::Write { request, .. } | Event::FlushIssued(request) => {
                assert_eq!(request, RequestNo(issued), "requests are counted in order of issue");
                issued += 1;
                open.insert(request);
            }
            Event::Ack(request) | Event::FlushAcked(request) => {
                assert!(open.remove(&request), "{request:?} is done once, after its issue");
            }
            other => panic!("{other:?} did not happen"),
        }
    }
    assert_eq!(u64::from(issued), 4 * ROUNDS * 3);
    assert!(open.is_empty(), "everything returned");
}
