//! From an instruction set to its table of loops.

#![allow(unsafe_code, reason = "a function compiled with more instructions than its caller is called unsafely")]

/// Each loop of [`super::wide`] compiled with the instructions of `$isa`, and the table of them for who has
/// every feature that is named. `$isa` is made here alone.
macro_rules! kernel {
    ($name:literal, $isa:ident, $has:ident, $features:tt) => {
        /// The table of these loops, if this CPU has them.
        pub fn available() -> Option<&'static super::Kernel> {
            static KERNEL: super::Kernel = super::Kernel { name: $name, text_run, unescape, token_ids, skip, hash };
            super::table::kernel!(@has $has $features).then_some(&KERNEL)
        }

        super::table::kernel!(@loop $isa $features text_run(bytes: &[u8]) -> usize);
        super::table::kernel!(@loop $isa $features unescape(bytes: &[u8], out: &mut [u8]) -> (usize, usize));
        super::table::kernel!(@loop $isa $features token_ids(bytes: &[u8], out: &mut [u8]) -> (usize, usize));
        super::table::kernel!(@loop $isa $features skip(state: &mut super::Skip, bytes: &[u8]) -> Option<usize>);
        super::table::kernel!(@loop $isa $features
            hash(lanes: &mut super::Lanes, bytes: &[u8], steps: bool, slots: &mut [u64]) -> ());
    };
    (@has $has:ident [$($feature:tt),+]) => {
        (true $(&& std::arch::$has!($feature))+)
    };
    (@loop $isa:ident [$($feature:tt),+] $name:ident($($argument:ident: $type:ty),+) -> $answer:ty) => {
        fn $name($($argument: $type),+) -> $answer {
            $(#[target_feature(enable = $feature)])+
            fn compiled($($argument: $type),+) -> $answer {
                super::wide::$name($isa(()), $($argument),+)
            }
            // SAFETY: the table alone names this function, and `available` gives the table out only where the
            // CPU has every feature of the list.
            unsafe { compiled($($argument),+) }
        }
    };
}
pub(super) use kernel;
