//! Completions for shells. Those of `clap_complete` know one value for an option; the list of `-o` has several, which
//! bash, zsh and fish are told.

use anyhow::Result;
use clap::CommandFactory;
use clap_complete::Shell;

use crate::mount::list_words;
use crate::output::{Outcome, text};

/// Arguments of `completions`.
#[derive(clap::Args)]
pub struct Arguments {
    /// The shell
    shell: Shell,
}

/// Runs `completions`.
pub fn run(arguments: &Arguments) -> Result<Outcome> {
    text(&script(arguments.shell))?;
    Ok(Outcome::SUCCESS)
}

/// What the shell reads.
fn script(shell: Shell) -> String {
    let mut made = Vec::new();
    clap_complete::generate(shell, &mut crate::Arguments::command(), "fstitch", &mut made);
    let made = String::from_utf8_lossy(&made).into_owned();
    let words = list_words().collect::<Vec<_>>().join(" ");
    match shell {
        // What has been typed up to the last comma stays.
        Shell::Bash => made.replace(
            &format!("compgen -W \"{words}\" -- \"${{cur}}\""),
            &format!("compgen -P \"${{cur%\"${{cur##*,}}\"}}\" -W \"{words}\" -- \"${{cur##*,}}\""),
        ),
        Shell::Zsh => made.replace(
            &format!(":LIST:({words})"),
            &format!(":LIST:_values -s , \"mount option\" {}", zsh_values()),
        ),
        // Fish has a function of its own for lists.
        Shell::Fish => {
            let listed: Vec<String> = list_words().map(|word| format!("{word}\\t''")).collect();
            let command = format!("printf '%s\\\\n' {words}");
            made.replace(
                &format!("\"{}\"", listed.join("\n")),
                &format!("\"(__fish_complete_list , \\\"{command}\\\")\""),
            )
        }
        _ => made,
    }
}

/// The words as zsh's `_values` takes them: `name` or `"name:what:(values)"`. Its colons stand between
/// colons of another list, and are marked.
fn zsh_values() -> String {
    let mut specs: Vec<String> = Vec::new();
    let mut last = None;
    for word in list_words() {
        let Some((name, value)) = word.split_once('=') else {
            specs.push(word.to_owned());
            continue;
        };
        match specs.last_mut() {
            Some(spec) if last == Some(name) => {
                spec.truncate(spec.len() - 2);
                spec.push_str(&format!(" {value})\""));
            }
            _ if value.is_empty() => specs.push(format!(r#""{name}\:value\: ""#)),
            _ => specs.push(format!(r#""{name}\:value\:({value})""#)),
        }
        last = Some(name);
    }
    specs.join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_of_options_are_completed_word_by_word() {
        let bash = script(Shell::Bash);
        assert!(bash.contains("compgen -P") && bash.contains("consistency=ordered"), "{bash}");
        let zsh = script(Shell::Zsh);
        assert!(zsh.contains("_values -s , \"mount option\" ro rw sync"), "{zsh}");
        assert!(zsh.contains(r#""transport\:value\:(auto device io_uring)""#), "{zsh}");
        let fish = script(Shell::Fish);
        assert!(fish.contains("(__fish_complete_list , ") && fish.contains("consistency=ordered"), "{fish}");
    }
}
