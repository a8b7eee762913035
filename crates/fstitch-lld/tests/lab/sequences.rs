//! Every operation, and every two of them one behind the other: by themselves, in a unit of their own, in one unit, and in two units at
//! once; with a flush, a checkpoint or the cleaner between and behind them.

use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};

use fstitch_core::num::{to_u64, to_usize};
use fstitch_core::{BlockDevice, Result};
use fstitch_crashlab::Level;
use fstitch_lld::{Aru, At, BlockId, Disk, EndError, ListId};

use crate::rig::{BLOCK, Rig, Shown, choices, explore_all, formatted, options, shown};

/// An operation on what [`start`] has made.
#[derive(Clone, Copy, Debug)]
enum Op {
    NewList,
    NewSparse,
    DeleteList,
    DeleteSparse,
    InsertFirst,
    InsertAfter,
    Delete,
    Write,
    WriteSame,
    WriteAt,
    WriteGap,
    DeleteRange,
    DeleteRest,
}

const OPS: [Op; 13] = [
    Op::NewList,
    Op::NewSparse,
    Op::DeleteList,
    Op::DeleteSparse,
    Op::InsertFirst,
    Op::InsertAfter,
    Op::Delete,
    Op::Write,
    Op::WriteSame,
    Op::WriteAt,
    Op::WriteGap,
    Op::DeleteRange,
    Op::DeleteRest,
];

/// How operations are done.
#[derive(Clone, Copy, Debug)]
enum Act {
    Simple(Op),
    Unit(Op),
    Durable(Op),
    Aborted(Op),
    Flush,
    Checkpoint,
    Clean,
}

fn acts() -> Vec<Act> {
    let kinds = [Act::Simple as fn(Op) -> Act, Act::Unit, Act::Durable, Act::Aborted];
    let ops = kinds.iter().flat_map(|kind| OPS.map(kind));
    ops.chain([Act::Flush, Act::Checkpoint, Act::Clean]).collect()
}

/// A program: what happens, one behind the other.
#[derive(Clone, Copy, Debug)]
enum Program {
    One(Act),
    Two(Act, Act),
    /// Both in one unit.
    Together(Op, Op),
    /// Each in a unit, of which the first to begin is the first to end, or the last.
    AtOnce(Op, Op, bool),
}

fn programs() -> Vec<Program> {
    let acts = acts();
    let pairs = || acts.iter().flat_map(|a| acts.iter().map(|b| (*a, *b)));
    let ops = || OPS.iter().flat_map(|a| OPS.iter().map(|b| (*a, *b)));
    let mut all: Vec<Program> = acts.iter().map(|act| Program::One(*act)).collect();
    all.extend(pairs().map(|(a, b)| Program::Two(a, b)));
    all.extend(ops().map(|(a, b)| Program::Together(a, b)));
    all.extend(ops().map(|(a, b)| Program::AtOnce(a, b, false)));
    all.extend(ops().map(|(a, b)| Program::AtOnce(a, b, true)));
    all
}

/// The disk before: an ordered list of three blocks and a sparse one of three, of which a part is behind the checkpoint.
struct Start {
    image: Vec<u8>,
    shown: Shown,
    list: ListId,
    blocks: [BlockId; 3],
    sparse: ListId,
}

fn start() -> &'static Start {
    static START: OnceLock<Start> = OnceLock::new();
    START.get_or_init(|| {
        let made = formatted(24);
        let (disk, _) = Disk::open(Arc::clone(&made) as Arc<dyn BlockDevice>, &options()).unwrap();
        let (list, sparse) = (disk.new_list(false).unwrap(), disk.new_list(true).unwrap());
        let blocks = [0; 3].map(|_| disk.new_block(list, At::Start).unwrap());
        for position in [0, 4, 9] {
            disk.write_at(sparse, position, &[251; BLOCK]).unwrap();
        }
        disk.checkpoint().unwrap();
        disk.write(blocks[0], &[252; BLOCK]).unwrap();
        disk.write_at(sparse, 4, &[253; BLOCK]).unwrap();
        disk.flush().unwrap();
        let shown = shown(&disk).unwrap();
        // The list is the other way round: each block was put in front of those before.
        Start { image: made.image(), shown, list, blocks: [blocks[2], blocks[1], blocks[0]], sparse }
    })
}

/// What an operation is done on: the disk, or a unit.
#[derive(Clone, Copy)]
enum On<'a, 'b> {
    Disk(&'a Disk),
    Unit(&'a Aru<'b>),
}

/// Calls the same on either.
macro_rules! on {
    ($on:expr, $call:ident($($argument:expr),*)) => {
        match $on {
            On::Disk(disk) => disk.$call($($argument),*),
            On::Unit(unit) => unit.$call($($argument),*),
        }
    };
}

/// What an operation does to the lists, whenever it happens.
#[derive(Clone, Debug)]
enum Effect {
    NewList {
        list: ListId,
        sparse: bool,
    },
    DeleteList(ListId),
    /// Block, list, behind which.
    Insert(BlockId, ListId, Option<BlockId>),
    InsertAt(BlockId, ListId, u64),
    Delete(BlockId),
    Write(BlockId, u8),
}

/// Does an operation on what is seen there. Returns what it does to the lists.
fn perform(on: On<'_, '_>, op: Op, fill: u8, seen: &Shown) -> Result<Vec<Effect>> {
    let Start { list, blocks, sparse, .. } = *start();
    let write_at = |position| -> Result<Vec<Effect>> {
        let there = seen.sparse.get(&sparse).and_then(|all| all.get(&position)).map(|(block, _)| *block);
        on!(on, write_at(sparse, position, &[fill; BLOCK]))?;
        let block = on!(on, block_at(sparse, position))?.expect("it was written");
        assert!(there.is_none_or(|there| there == block), "it is the same block");
        let made = there.is_none().then_some(Effect::InsertAt(block, sparse, position));
        Ok(made.into_iter().chain([Effect::Write(block, fill)]).collect())
    };
    let delete_range = |from, last| -> Result<Vec<Effect>> {
        let gone = on!(on, delete_range(sparse, from, last))?;
        let all = seen.sparse.get(&sparse).into_iter().flat_map(|all| all.range(from..=last));
        let effects: Vec<Effect> = all.map(|(_, (block, _))| Effect::Delete(*block)).collect();
        assert_eq!(to_u64(effects.len()), gone);
        Ok(effects)
    };
    Ok(match op {
        Op::NewList => vec![Effect::NewList { list: on!(on, new_list(false))?, sparse: false }],
        Op::NewSparse => vec![Effect::NewList { list: on!(on, new_list(true))?, sparse: true }],
        Op::DeleteList => on!(on, delete_list(list)).map(|()| vec![Effect::DeleteList(list)])?,
        Op::DeleteSparse => on!(on, delete_list(sparse)).map(|()| vec![Effect::DeleteList(sparse)])?,
        Op::InsertFirst => vec![Effect::Insert(on!(on, new_block(list, At::Start))?, list, None)],
        Op::InsertAfter => {
            let block = on!(on, new_block(list, At::After(blocks[1])))?;
            vec![Effect::Insert(block, list, Some(blocks[1]))]
        }
        Op::Delete => on!(on, delete_block(blocks[1])).map(|()| vec![Effect::Delete(blocks[1])])?,
        Op::Write => {
            on!(on, write(blocks[0], &[fill; BLOCK])).map(|()| vec![Effect::Write(blocks[0], fill)])?
        }
        Op::WriteSame => {
            on!(on, write(blocks[1], &[fill; BLOCK])).map(|()| vec![Effect::Write(blocks[1], fill)])?
        }
        Op::WriteAt => write_at(4)?,
        Op::WriteGap => write_at(7)?,
        Op::DeleteRange => delete_range(3, 7)?,
        Op::DeleteRest => delete_range(4, u64::MAX)?,
    })
}

/// The lists after an effect.
fn apply(shown: &mut Shown, effect: &Effect) {
    match *effect {
        Effect::NewList { list, sparse: false } => drop(shown.ordered.insert(list, Vec::new())),
        Effect::NewList { list, sparse: true } => drop(shown.sparse.insert(list, BTreeMap::new())),
        Effect::DeleteList(list) => {
            shown.ordered.remove(&list);
            shown.sparse.remove(&list);
        }
        Effect::Insert(block, list, after) => {
            let Some(blocks) = shown.ordered.get_mut(&list) else { return };
            let place = |after| blocks.iter().position(|(other, _)| *other == after).map(|at| at + 1);
            let at = after.map_or(Some(0), place);
            at.into_iter().for_each(|at| blocks.insert(at, (block, 0)));
        }
        Effect::InsertAt(block, list, position) => {
            if let Some(all) = shown.sparse.get_mut(&list) {
                all.insert(position, (block, 0));
            }
        }
        Effect::Delete(block) => {
            shown.ordered.values_mut().for_each(|blocks| blocks.retain(|(other, _)| *other != block));
            shown.sparse.values_mut().for_each(|all| all.retain(|_, (other, _)| *other != block));
        }
        Effect::Write(block, fill) => {
            let ordered = shown.ordered.values_mut().flatten();
            let sparse = shown.sparse.values_mut().flat_map(BTreeMap::values_mut);
            ordered.chain(sparse).filter(|(other, _)| *other == block).for_each(|found| found.1 = fill);
        }
    }
}

/// A unit on its way, with what it sees and what it will have done.
struct Open<'a> {
    unit: Aru<'a>,
    seen: Shown,
    effects: Vec<Effect>,
}

impl<'a> Open<'a> {
    fn begin(disk: &'a Disk, shown: &Shown) -> Self {
        Self { unit: disk.begin(), seen: shown.clone(), effects: Vec::new() }
    }

    fn perform(&mut self, op: Op, fill: u8) {
        let Ok(effects) = perform(On::Unit(&self.unit), op, fill, &self.seen) else { return };
        effects.iter().for_each(|effect| apply(&mut self.seen, effect));
        self.effects.extend(effects);
    }

    /// Ends it. It may be in conflict with one that ended before: then nothing has happened.
    fn end(self, shown: &mut Shown, durable: bool) {
        let ended = if durable { self.unit.end_durable() } else { self.unit.end() };
        match ended {
            Ok(()) => self.effects.iter().for_each(|effect| apply(shown, effect)),
            Err(EndError::Conflict(_)) => {}
            Err(error) => panic!("{error}"),
        }
    }
}

fn act(rig: &mut Rig, act: Act) {
    let fill = rig.fill();
    match act {
        Act::Simple(op) => rig.operate(|disk, shown| {
            let effects = perform(On::Disk(disk), op, fill, shown).unwrap_or_default();
            effects.iter().for_each(|effect| apply(shown, effect));
        }),
        Act::Unit(op) | Act::Durable(op) => {
            let durable = matches!(act, Act::Durable(_));
            rig.operate(|disk, shown| {
                let mut open = Open::begin(disk, shown);
                open.perform(op, fill);
                open.end(shown, durable);
            });
            if durable {
                rig.promise();
            }
        }
        Act::Aborted(op) => rig.operate(|disk, shown| {
            let mut open = Open::begin(disk, shown);
            open.perform(op, fill);
            open.unit.abort();
        }),
        Act::Flush => rig.flush(),
        Act::Checkpoint => rig.checkpoint(),
        Act::Clean => rig.clean(2),
    }
}

fn run(program: Program) -> Rig {
    let mut rig = Rig::on(start().image.clone(), start().shown.clone());
    let (first, second) = (rig.fill(), rig.fill());
    match program {
        Program::One(a) => act(&mut rig, a),
        Program::Two(a, b) => {
            act(&mut rig, a);
            act(&mut rig, b);
        }
        Program::Together(a, b) => rig.operate(|disk, shown| {
            let mut open = Open::begin(disk, shown);
            open.perform(a, first);
            open.perform(b, second);
            open.end(shown, false);
        }),
        Program::AtOnce(a, b, last_first) => at_once(&mut rig, (a, first), (b, second), last_first),
    }
    rig.flush();
    let live = shown(&rig.disk).unwrap();
    assert_eq!(&live, rig.now(), "{program:?}");
    rig
}

/// Two units that know nothing of each other. The end of each is a moment of its own.
fn at_once(rig: &mut Rig, (a, first): (Op, u8), (b, second): (Op, u8), last_first: bool) {
    let before = rig.now().clone();
    let disk = Arc::clone(&rig.disk);
    let mut units = [Open::begin(&disk, &before), Open::begin(&disk, &before)];
    units[0].perform(a, first);
    units[1].perform(b, second);
    if last_first {
        units.reverse();
    }
    for open in units {
        rig.operate(|_, shown| open.end(shown, false));
    }
}

#[test]
fn every_operation_and_every_two_of_them_survive() {
    let programs = programs();
    let is_all = std::env::var("FSTITCH_CRASH_SEQUENCES").is_ok_and(|given| given == "all");
    let step = if is_all { 1 } else { 29 };
    let count = to_u64(programs.len()).div_ceil(step);
    let counts = explore_all(0..count, choices(if is_all { 256 } else { 16 }), &|number| {
        let at = number * step;
        let levels = if is_all { Level::ALL.to_vec() } else { vec![Level::ALL[to_usize(number % 4)]] };
        let program = programs[to_usize(at)];
        let name: String = format!("{program:?}").chars().filter(|letter| letter.is_alphanumeric()).collect();
        (run(program), format!("{at}/{name}"), levels)
    });
    assert!(counts.generated > 10 * counts.workloads, "{counts:?}");
}
