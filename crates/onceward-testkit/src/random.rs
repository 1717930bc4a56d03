//! Chance as an input: the same seed gives the same history.

use std::time::Duration;

/// A small generator, `SplitMix64`: statistically good, trivially reproducible, and no secret depends on it.
#[derive(Debug, Clone)]
pub struct Random {
    state: u64,
}

impl Random {
    /// The generator of this seed.
    pub const fn seeded(seed: u64) -> Self {
        Self { state: seed }
    }

    /// The next 64 bits.
    pub const fn next(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.state ^ (self.state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// A number below `bound`, which must not be zero.
    pub const fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }

    /// One of these, of which there must be at least one.
    pub fn pick<'a, T>(&mut self, from: &'a [T]) -> &'a T {
        let at = usize::try_from(self.next()).unwrap_or(usize::MAX) % from.len();
        &from[at]
    }

    /// A number in `from..=to`.
    pub const fn between(&mut self, from: u64, to: u64) -> u64 {
        from + self.below(to.saturating_sub(from) + 1)
    }

    /// A duration between two numbers of milliseconds.
    pub const fn millis(&mut self, from: u64, to: u64) -> Duration {
        Duration::from_millis(self.between(from, to))
    }

    /// True so many times in a thousand, on average.
    pub const fn permille(&mut self, chance: u64) -> bool {
        self.below(1000) < chance
    }

    /// True once in `times`, on average.
    pub const fn once_in(&mut self, times: u64) -> bool {
        self.below(times) == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_seed_gives_one_history_and_another_gives_another() {
        let draw = |seed| {
            std::iter::repeat_with({
                let mut random = Random::seeded(seed);
                move || random.next()
            })
            .take(8)
            .collect::<Vec<_>>()
        };
        assert_eq!(draw(1), draw(1));
        assert_ne!(draw(1), draw(2));
    }

    #[test]
    fn every_choice_is_made_sooner_or_later() {
        let mut random = Random::seeded(7);
        let mut met = [false; 5];
        for _ in 0..200 {
            met[*random.pick(&[0_usize, 1, 2, 3, 4])] = true;
        }
        assert_eq!(met, [true; 5]);
    }
}
