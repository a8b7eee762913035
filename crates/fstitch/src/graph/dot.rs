//! The graph in the language of Graphviz: a box for each block, a node for each patch, an arrow to what it waits for.

use std::collections::BTreeSet;
use std::fmt::Write;

use anyhow::Result;

use super::explain;
use crate::control::graph::{Block, Graph, Patch, Role};

/// The drawing.
pub fn draw(graph: &Graph) -> Result<String> {
    let mut drawn = String::from(
        "digraph patches {\n  rankdir = LR;\n  node [shape = box, fontname = \"sans\"];\n  \
         graph [fontname = \"sans\", style = rounded];\n",
    );
    for block in &graph.blocks {
        drawn += &draw_block(block)?;
    }
    for patch in &graph.empties {
        writeln!(drawn, "  {}", node(patch))?;
    }
    let of_blocks = graph.blocks.iter().flat_map(|block| &block.patches);
    let shown: BTreeSet<u64> = of_blocks.chain(&graph.empties).map(|patch| patch.patch).collect();
    let ends = graph.edges.iter().map(|edge| edge.before);
    let not_shown: BTreeSet<u64> = ends.filter(|end| !shown.contains(end)).collect();
    for patch in not_shown {
        writeln!(drawn, "  p{patch} [label = \"{patch}\\nnot shown\", style = dotted];")?;
    }
    for edge in &graph.edges {
        let style = if edge.implicit { " [style = dashed]" } else { "" };
        writeln!(drawn, "  p{} -> p{}{style};", edge.after, edge.before)?;
    }
    drawn.push_str("}\n");
    Ok(drawn)
}

fn draw_block(block: &Block) -> Result<String> {
    let mut drawn = String::new();
    let why = block.why.as_ref().map(|why| explain(why, block)).unwrap_or_default();
    let colour = if block.in_flight { "blue" } else { "black" };
    writeln!(drawn, "  subgraph cluster_{} {{", block.block)?;
    writeln!(drawn, "    label = \"block {} ({})\\n{why}\"; color = {colour};", block.block, block.kind)?;
    for patch in &block.patches {
        writeln!(drawn, "    {}", node(patch))?;
    }
    drawn.push_str("  }\n");
    Ok(drawn)
}

fn node(patch: &Patch) -> String {
    let shape = match patch.role {
        Role::Hard => "shape = box, style = bold",
        Role::Held => "shape = octagon",
        Role::Empty => "shape = ellipse",
        Role::Gather => "shape = ellipse, style = dotted",
        Role::Soft | Role::Other => "shape = box",
    };
    let bytes = match (patch.offset, patch.len) {
        (Some(offset), Some(len)) => format!("\\nbytes {offset}–{}", offset + len.saturating_sub(1)),
        _ => String::new(),
    };
    let flies = if patch.in_flight { ", color = blue" } else { "" };
    format!("p{} [label = \"{}{bytes}\", {shape}{flies}];", patch.patch, patch.patch)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control::graph::Edge;

    #[test]
    fn a_drawing_has_all_ends_of_its_arrows() {
        let mut graph = super::super::tests::example();
        graph.edges = vec![
            Edge { after: 350, before: 120, ..Edge::default() },
            Edge { after: 360, before: 777, implicit: true, ..Edge::default() },
        ];
        let drawn = draw(&graph).unwrap();
        assert!(drawn.contains("  p350 -> p120;\n  p360 -> p777 [style = dashed];\n"), "{drawn}");
        assert!(drawn.contains("p777 [label = \"777\\nnot shown\", style = dotted];"), "{drawn}");
        assert!(drawn.contains("subgraph cluster_35 {"), "{drawn}");
        assert_eq!(drawn.matches('{').count(), drawn.matches('}').count());
    }
}
