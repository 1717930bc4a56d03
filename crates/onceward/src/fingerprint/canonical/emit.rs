//! Writes the noted text again, with the members of rewritten containers in their final order.

use super::{Container, Scratch, offset};

/// What is left to be written; a stack of these takes the place of recursion.
#[derive(Clone, Copy)]
pub(super) enum Step {
    /// A stretch of `text`, in which `container` is the first that begins there or later.
    Text { from: u32, to: u32, container: u32 },
    /// The members from `next` on, and the bracket at the end of the container.
    Members { first: u32, next: u32, last: u32, closing: u8 },
}

impl Scratch {
    pub(super) fn emit(&mut self) {
        let Self { text, members, containers, steps, sorted, .. } = self;
        sorted.reserve(text.len());
        steps.push(Step::Text { from: 0, to: offset(text.len()), container: 0 });
        while let Some(step) = steps.pop() {
            match step {
                Step::Text { from, to, container } => {
                    let Some((container, (first, last))) = rewritten(containers, container, to) else {
                        sorted.extend_from_slice(&text[from as usize..to as usize]);
                        continue;
                    };
                    // The opening bracket is still part of the stretch before.
                    sorted.extend_from_slice(&text[from as usize..=container.start as usize]);
                    let closing = text[container.end as usize - 1];
                    steps.push(Step::Text { from: container.end, to, container: container.next });
                    steps.push(Step::Members { first, next: first, last, closing });
                }
                Step::Members { first, mut next, last, closing } => loop {
                    if next == last {
                        sorted.push(closing);
                        break;
                    }
                    if next > first {
                        sorted.push(b',');
                    }
                    let member = members[next as usize];
                    next += 1;
                    if rewritten(containers, member.container, member.end).is_some() {
                        steps.push(Step::Members { first, next, last, closing });
                        steps.push(Step::Text {
                            from: member.start,
                            to: member.end,
                            container: member.container,
                        });
                        break;
                    }
                    sorted.extend_from_slice(&text[member.start as usize..member.end as usize]);
                },
            }
        }
    }
}

/// The first container from `from` on that begins before `to` and is rewritten, and its members.
fn rewritten(containers: &[Container], from: u32, to: u32) -> Option<(&Container, (u32, u32))> {
    containers[from as usize..]
        .iter()
        .take_while(|container| container.start < to)
        .find_map(|container| container.rewritten.map(|members| (container, members)))
}
