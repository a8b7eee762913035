//! What a page says to a shell: its fenced blocks, by sections, with the comments that tell how to run them.
//!
//! A **section** goes from one heading of the first or second level to the next; its blocks are run in their order, in one
//! folder. HTML comments, which no reader sees, stand before a block:
//!
//! - `<!-- given: COMMANDS -->`: what the text takes for granted; run before the block.
//! - `<!-- needs: WORD … -->`: `fuse`, `root`, or programs; where one lacks, the section is skipped aloud.
//! - `<!-- file: NAME -->`: the block is this file.
//! - `<!-- not run: WHY -->`: it is not run, and the reason is shown.

use std::path::{Path, PathBuf};

/// A fenced block.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Block {
    /// Line of the fence, from 1.
    pub line: usize,
    /// The word behind the fence.
    pub language: String,
    /// What it says.
    pub text: String,
    pub given: Vec<String>,
    pub needs: Vec<String>,
    pub file: Option<String>,
    pub not_run: Option<String>,
}

/// Blocks that belong together.
#[derive(Clone, Debug, Default)]
pub struct Section {
    pub page: PathBuf,
    pub heading: String,
    pub blocks: Vec<Block>,
}

impl Section {
    /// The blocks that a shell runs.
    pub fn run(&self) -> impl Iterator<Item = &Block> {
        self.blocks.iter().filter(|block| block.is_shell() && block.not_run.is_none())
    }

    pub fn needs(&self) -> impl Iterator<Item = &str> {
        self.run().flat_map(|block| &block.needs).map(String::as_str)
    }
}

impl Block {
    pub fn is_shell(&self) -> bool {
        self.language == "sh" && self.file.is_none()
    }

    /// Whether it shows commands of ours that no shell runs.
    pub fn hides_commands(&self) -> bool {
        let is_command = |line: &str| ["fstitch ", "make ", "$ "].iter().any(|head| line.starts_with(head));
        !self.is_shell() && self.not_run.is_none() && self.text.lines().any(is_command)
    }
}

/// The sections of `page`.
pub fn sections(page: &Path, text: &str) -> Vec<Section> {
    let section = |heading: &str| Section {
        page: page.to_path_buf(),
        heading: heading.trim_start_matches('#').trim().to_owned(),
        blocks: Vec::new(),
    };
    let mut all = vec![section("")];
    let mut next = Block::default();
    let mut lines = text.lines().enumerate();
    while let Some((at, line)) = lines.next() {
        if let Some(language) = line.strip_prefix("```") {
            next.line = at + 1;
            next.language = language.split(',').next().unwrap_or_default().to_owned();
            let inside = lines.by_ref().map(|(_, line)| line).take_while(|line| !line.starts_with("```"));
            next.text = inside.map(|line| format!("{line}\n")).collect();
            let block = std::mem::take(&mut next);
            all.last_mut().expect("there is one").blocks.push(block);
        } else if let Some(begun) = line.strip_prefix("<!-- ") {
            let mut comment = begun.to_owned();
            while !comment.contains("-->") {
                let Some((_, line)) = lines.next() else { break };
                comment = format!("{comment}\n{line}");
            }
            next.take(comment.split("-->").next().unwrap_or_default().trim());
        } else if line.starts_with("# ") || line.starts_with("## ") {
            all.push(section(line));
        }
    }
    all.retain(|section| !section.blocks.is_empty());
    all
}

impl Block {
    fn take(&mut self, comment: &str) {
        let words = |text: &str| text.trim().to_owned();
        if let Some(commands) = comment.strip_prefix("given:") {
            self.given.push(words(commands));
        } else if let Some(needs) = comment.strip_prefix("needs:") {
            self.needs.extend(needs.split_whitespace().map(str::to_owned));
        } else if let Some(name) = comment.strip_prefix("file:") {
            self.file = Some(words(name));
        } else if let Some(why) = comment.strip_prefix("not run:") {
            self.not_run = Some(words(why));
        }
    }
}

/// How a command is to end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    Well,
    /// With any status but 0, because its comment says `fails` or `refuses`.
    Badly,
    /// With this one, because its comment says `exit status N`.
    Status(i32),
}

/// The commands of a block: each with the lines that belong to it, and how the page says that it ends.
pub fn commands(text: &str) -> Vec<(String, End)> {
    let mut all: Vec<(String, End)> = Vec::new();
    let mut goes_on = false;
    for line in text.lines() {
        let (code, comment) = split_comment(line);
        let code = code.trim_end();
        if code.is_empty() {
            continue;
        }
        let end = end_of(comment);
        match all.last_mut() {
            Some((command, ends)) if goes_on || line.starts_with(' ') => {
                *command = format!("{command}\n{code}");
                if end != End::Well {
                    *ends = end;
                }
            }
            _ => all.push((code.to_owned(), end)),
        }
        goes_on = ["\\", "&&", "||", "|"].iter().any(|tail| code.ends_with(tail));
    }
    all
}

fn end_of(comment: &str) -> End {
    let status = comment.split("exit status ").nth(1).and_then(|rest| {
        let digits: String = rest.chars().take_while(char::is_ascii_digit).collect();
        digits.parse().ok()
    });
    let says = |word: &str| comment.split(|c: char| !c.is_alphabetic()).any(|found| found == word);
    match status {
        Some(status) => End::Status(status),
        None if says("fails") || says("refuses") => End::Badly,
        None => End::Well,
    }
}

/// A line of shell and its comment: `#` after a blank, or at the start, outside quotes.
fn split_comment(line: &str) -> (&str, &str) {
    let (mut quote, mut before) = (None, ' ');
    for (at, letter) in line.char_indices() {
        match (quote, letter) {
            (None, '#') if before.is_whitespace() => return (&line[..at], &line[at + 1..]),
            (None, '\'' | '"') => quote = Some(letter),
            (Some(open), _) if open == letter => quote = None,
            _ => {}
        }
        before = letter;
    }
    (line, "")
}

#[test]
fn a_page_is_taken_apart() {
    let page = "# One\n<!-- given: mkdir a\ntouch a/b -->\n<!-- needs: fuse cc -->\n```sh\nls a\n```\n## Two\n\
                <!-- not run: slow -->\n\n```sh\nsleep 9\n```\n<!-- file: x -->\n```toml\na = 1\n```\n\
                ```text\nfstitch ls\n```\n### Still two\n```sh\ntrue\n```\n";
    let found = sections(Path::new("p.md"), page);
    let headings: Vec<&str> = found.iter().map(|section| section.heading.as_str()).collect();
    assert_eq!(headings, ["One", "Two"]);
    let one = &found[0].blocks[0];
    assert_eq!(
        (one.line, one.text.as_str(), one.given.as_slice()),
        (5, "ls a\n", &["mkdir a\ntouch a/b".to_owned()][..])
    );
    assert_eq!(found[0].needs().collect::<Vec<_>>(), ["fuse", "cc"]);
    let two = &found[1];
    assert_eq!(two.blocks[0].not_run.as_deref(), Some("slow"));
    assert_eq!(two.blocks[1].file.as_deref(), Some("x"));
    assert!(two.blocks[2].hides_commands());
    assert_eq!(two.run().map(|block| block.text.as_str()).collect::<Vec<_>>(), ["true\n"]);
}

#[test]
fn commands_end_as_their_comments_say() {
    let text = "a 'x # y' # fails: it says why\n# only said\nb \\\n  c   # found, exit status 4\nd &&\ne\nf # it refuses\ng #h\n";
    let expected = [
        ("a 'x # y'", End::Badly),
        ("b \\\n  c", End::Status(4)),
        ("d &&\ne", End::Well),
        ("f", End::Badly),
        ("g", End::Well),
    ];
    let expected = expected.map(|(command, end)| (command.to_owned(), end));
    assert_eq!(commands(text), expected);
}
