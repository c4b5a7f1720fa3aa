//! Sorting by a time in linear time.

/// Bits of a digit: 2048 counters stay in the first-level cache.
const DIGIT: u32 = 11;

/// Sorts by the first number, keeping the order of equals (least significant digit first; digits in which no two times
/// differ cost nothing, a row that ascends already one look).
pub(crate) fn sort<T: Copy>(rows: &mut Vec<(u64, T)>) {
    let Some(&first) = rows.first() else {
        return;
    };
    if rows.is_sorted_by_key(|row| row.0) {
        return;
    }
    let differing = rows.iter().fold(0, |bits, row| bits | (row.0 ^ first.0));
    let mut other = vec![first; rows.len()];
    // Not on the stack, of which an allocator's caller may have little.
    let mut places = vec![0usize; 1 << DIGIT];
    for shift in (0..u64::BITS).step_by(DIGIT as usize) {
        let mask = (1 << DIGIT) - 1;
        if (differing >> shift) & mask == 0 {
            continue;
        }
        let digit = |row: &(u64, T)| ((row.0 >> shift) & mask) as usize;
        places.fill(0);
        rows.iter().for_each(|row| places[digit(row)] += 1);
        let mut sum = 0;
        for place in &mut places {
            sum += std::mem::replace(place, sum);
        }
        for row in rows.iter() {
            let place = &mut places[digit(row)];
            other[*place] = *row;
            *place += 1;
        }
        std::mem::swap(rows, &mut other);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn equals_keep_their_order(times in prop::collection::vec(prop_oneof![0u64..9, any::<u64>()], 0..300)) {
            let mut rows: Vec<(u64, usize)> = times.iter().copied().zip(0..).collect();
            let mut expected = rows.clone();
            expected.sort();
            super::sort(&mut rows);
            prop_assert_eq!(rows, expected);
        }
    }
}
