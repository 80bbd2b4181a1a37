#pragma once
// Items of one type -> items of another, on the way to their slots: cast, fill value -> NaN, scale and offset, normalisation.
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
  /// Items that are converted at a time, in the first level cache.
  static constexpr size_t kBlock = 1024;

  /// Throws Error(kUnsupported) for a pair of types that would lose more than precision. The processor must have `isa`.
  explicit Converter(ConversionSpec spec, Isa isa = best_isa());

  /// Converts `count` items in native byte order, with any alignment. The first one is item `position` of its sample.
  void convert(uint8_t* dest, const uint8_t* source, size_t count, size_t position) const;

  [[nodiscard]] size_t source_item_bytes() const { return bytes_of(spec_.from); }
  [[nodiscard]] size_t dest_item_bytes() const { return bytes_of(spec_.to); }

 private:
  using Kernel = void (*)(uint8_t* dest, const uint8_t* source, size_t count);

  /// Constants in the precision of the arithmetic.
  template <typename Real>
  struct Constants {
    std::vector<Real> fills;
    Real scale = 1;
    Real offset = 0;
    std::vector<Real> mean, std;  ///< one a channel; with a period, one an item, with kBlock items to spare
  };

  template <typename Real>
  [[nodiscard]] Constants<Real> make_constants() const;
  template <typename Real>
  void calculate(uint8_t* dest, const uint8_t* source, size_t count, size_t position, const Constants<Real>& c) const;
  /// Calls run(first item, items, channel) for each run of items of one channel.
  template <typename Run>
  void for_each_channel(size_t count, size_t position, const Run& run) const;
  template <typename Real>
  void normalise(Real* x, size_t count, size_t position, const Constants<Real>& c) const;
  template <typename Real>
  void apply(Real* x, size_t count, size_t position, const Constants<Real>& c) const;
  template <typename Real>
  void apply_avx2(Real* x, size_t count, size_t position, const Constants<Real>& c) const;
  template <typename Real>
  void apply_avx512(Real* x, size_t count, size_t position, const Constants<Real>& c) const;

  ConversionSpec spec_;
  Isa isa_;
  bool in_double_ = false;
  bool normalises_ = false;
  size_t period_ = 0;      ///< items after which means repeat, where channels are so short that each item has its own
  Kernel cast_ = nullptr;  ///< all there is to do, if set; else:
  FusedKernel fused_ = nullptr;  ///< the same, with these constants and the channel's; else:
  FusedConstants constants_;
  Kernel load_ = nullptr;     ///< stored items -> float or double
  Kernel store_ = nullptr;    ///< these -> items of type `to`
  Constants<float> single_;   ///< set unless in_double_
  Constants<double> double_;  ///< set if in_double_
};

}  // namespace zarrfeed
