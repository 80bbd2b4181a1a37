#include "engine/batch_ring.h"

#include <algorithm>
#include <string>

#include "base/division.h"
#include "base/error.h"

namespace zarrfeed {

BatchRing::BatchRing(int64_t steps, int64_t batch_size, int64_t size, int64_t period, size_t num_tensors)
    : steps_(steps),
      batch_size_(batch_size),
      size_(size),
      period_(period),
      capacity_(size * batch_size),
      in_lane_(ceil_div(capacity_, period)),
      num_batches_(ceil_div(steps, batch_size)),
      num_tensors_(num_tensors),
      buffers_(static_cast<size_t>(size) * num_tensors),
      remaining_(std::make_unique<std::atomic<int64_t>[]>(static_cast<size_t>(size))),
      claimed_(std::make_unique<std::atomic<uint32_t>[]>(static_cast<size_t>(in_lane_ * period))) {}

int64_t BatchRing::rows(int64_t batch) const {
  return std::min(batch_size_, steps_ - batch * batch_size_);
}

std::span<uint8_t*> BatchRing::buffers(int64_t batch) {
  return std::span(buffers_).subspan(index_of(batch) * num_tensors_, num_tensors_);
}

void BatchRing::open(int64_t batch, int64_t pieces) {
  remaining_[index_of(batch)].store(rows(batch) * pieces, std::memory_order_relaxed);
}

void BatchRing::claim(std::span<const Placement> rows) {
  int64_t begin = -1;  // first step of the ring's turn
  int64_t last = 0;
  size_t mark = 0;
  uint32_t turn = 0;
  for (const Placement& p : rows) {
    if (begin >= 0 && p.step == last + period_ && p.step - begin < capacity_) {
      ++mark;
    } else {
      begin = p.step / capacity_ * capacity_;
      mark = mark_of(p.step - begin);
      turn = static_cast<uint32_t>(p.step / capacity_) + 1;
    }
    last = p.step;
    // A higher turn means that the batch was delivered, and a later batch has its ring index.
    if (claimed_[mark].exchange(turn, std::memory_order_relaxed) >= turn) {
      throw Error(ErrorKind::kConfig, "plan: step " + std::to_string(p.step) + " is served twice");
    }
  }
}

int64_t BatchRing::first_unclaimed(int64_t batch) const {
  const int64_t end = batch * batch_size_ + rows(batch) - 1;
  int64_t step = batch * batch_size_;
  for (; step < end; ++step) {
    if (claimed_[mark_of(step % capacity_)] != static_cast<uint32_t>(step / capacity_) + 1) break;
  }
  return step;
}

void BatchRing::find_targets(std::span<const Placement> rows, size_t tensor, int64_t in_sample, size_t row_bytes,
                             size_t offset, std::vector<RowTarget>& out) {
  const size_t first = out.size();
  out.resize(first + rows.size());
  Cursor at(*this, in_sample);
  for (size_t i = 0; i < rows.size(); ++i) {
    at.seek(rows[i].step);
    out[first + i] = {rows[i].sample, buffers_[at.index * num_tensors_ + tensor] + offset +
                                          static_cast<size_t>(rows[i].step - at.begin) * row_bytes};
  }
}

void BatchRing::find_targets(std::span<const RowStretch> rows, size_t tensor, int64_t in_sample, size_t row_bytes,
                             size_t offset, std::vector<StretchTarget>& out) {
  Cursor at(*this, in_sample);
  for (const RowStretch& one : rows) {
    at.seek(one.first.step);
    uint8_t* const dest = buffers_[at.index * num_tensors_ + tensor] + offset +
                          static_cast<size_t>(one.first.step - at.begin) * row_bytes;
    out.push_back({one.first.sample, dest, one.count, one.row_step});
  }
}

}  // namespace zarrfeed
