#pragma once
// Items of one type -> items of another, on the way to their slots: cast, fill value -> NaN, scale and offset, steps.
// Pure: memory in, memory out.

#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/bytes.h"
#include "spec/conversion_spec.h"
#include "transform/convert/convert_fused.h"
#include "transform/convert/isa.h"

namespace zarrfeed {

/// Bytes of an item.
size_t bytes_of(ItemType type);

/// A ConversionSpec, ready to run. Immutable, hence shared by threads.
class Converter {
 public:
  /// Items that are converted at a time, in the L1 cache.
  static constexpr size_t kBlock = 1024;

  /// Throws Error(kUnsupported) for a pair of types that would lose more than precision. The processor must have `isa`.
  explicit Converter(ConversionSpec spec, Isa isa = best_isa());

  /// Converts `count` items in native byte order, with any alignment. The first one is item `position` of its sample.
  void convert(uint8_t* dest, const uint8_t* source, size_t count, size_t position) const;

  /// True if item `items` of a sample is converted as item 0, the next one as item 1, and so on.
  [[nodiscard]] bool repeats_after(size_t items) const { return items % repeat_items_ == 0; }

  [[nodiscard]] size_t source_item_bytes() const { return bytes_of(spec_.from); }
  [[nodiscard]] size_t dest_item_bytes() const { return bytes_of(spec_.to); }

 private:
  using Kernel = void (*)(uint8_t* dest, const uint8_t* source, size_t count);

  /// A ValueStep in the precision of the arithmetic.
  template <typename Real>
  struct Step {
    StepKind kind;
    std::vector<Real> first, second;  ///< one a channel; with a period, one an item, with kBlock items to spare
    size_t channel_items;
    size_t
        period;  ///< items after which numbers repeat, where channels are so short that each item has its own; else 0

    /// Calls run(first item, items, channel) for each run of items of one channel.
    template <typename Run>
    void for_each_channel(size_t count, size_t position, const Run& run) const;
    /// Replaces each x by Operation::apply(x, first, second).
    template <typename Operation>
    void apply_each(Real* x, size_t count, size_t position) const;
    void apply(Real* x, size_t count, size_t position) const;
  };

  /// Constants in the precision of the arithmetic.
  template <typename Real>
  struct Constants {
    std::vector<Real> fills;
    Real scale = 1;
    Real offset = 0;
    std::vector<Step<Real>> steps;
  };

  template <typename Real>
  [[nodiscard]] Constants<Real> make_constants() const;
  template <typename Real>
  void calculate(uint8_t* dest, const uint8_t* source, size_t count, size_t position, const Constants<Real>& c) const;
  template <typename Real>
  static Step<Real> make_step(const ValueStep& step);
  /// Sets the loop that does all in registers, if there is one.
  template <typename Real>
  void choose_fused(const Constants<Real>& c);
  template <typename Real>
  void convert_fused(uint8_t* dest, const uint8_t* source, size_t count, size_t position,
                     const Constants<Real>& c) const;
  template <typename Real>
  void apply(Real* x, size_t count, size_t position, const Constants<Real>& c) const;
  template <typename Real>
  void apply_avx2(Real* x, size_t count, size_t position, const Constants<Real>& c) const;
  template <typename Real>
  void apply_avx512(Real* x, size_t count, size_t position, const Constants<Real>& c) const;

  ConversionSpec spec_;
  Isa isa_;
  bool in_double_ = false;
  size_t repeat_items_ = 1;      ///< items of a sample after which the numbers of all steps repeat
  Kernel cast_ = nullptr;        ///< all there is to do, if set; else:
  FusedKernel fused_ = nullptr;  ///< the same, with these constants and the channel's; else:
  FusedConstants constants_;
  Kernel load_ = nullptr;     ///< stored items -> float or double
  Kernel store_ = nullptr;    ///< these -> items of type `to`
  Constants<float> single_;   ///< set unless in_double_
  Constants<double> double_;  ///< set if in_double_
};

}  // namespace zarrfeed
