#include "plan/unfolding.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <string>
#include <tuple>
#include <utility>

#include "base/division.h"
#include "plan/refuse.h"

namespace zarrfeed {
namespace {

/// A step that no consumer comes to.
constexpr int64_t kNever = std::numeric_limits<int64_t>::max();

/// The inverse of a modulo `period`, which has no factor in common with it.
int64_t inverse_of(int64_t a, int64_t period) {
  int64_t r = period, next_r = modulo(a, period), t = 0, next_t = 1;
  while (next_r != 0) {
    const int64_t quotient = r / next_r;
    r = std::exchange(next_r, r - quotient * next_r);
    t = std::exchange(next_t, t - quotient * next_t);
  }
  return modulo(t, period);
}

}  // namespace

Unfolding::Unfolding(std::shared_ptr<const OwnedPlan> plan)
    : whole_(std::move(plan)), plan_(whole_->plan), block_order_(*whole_->block_order) {
  const int64_t length = plan_.length;
  if (length != block_order_.table().length() || length < 1)
    refuse_plan("its block order has another number of samples");
  if (plan_.lanes < 1 || plan_.lanes > length || plan_.stride < 1 || plan_.first < 0 || plan_.count < 0 ||
      plan_.run > 0 || whole_->mix < 1 || plan_.mixture != nullptr || plan_.patches != nullptr) {
    refuse_plan("it cannot be unfolded");
  }
  if (plan_.count > 0 && plan_.count - 1 > (length - 1 - plan_.first) / plan_.stride)
    refuse_plan("it ends before its stride");
  common_ = std::gcd(plan_.stride, plan_.lanes);
  period_ = plan_.stride / common_;
  inverse_ = period_ > 1 ? inverse_of(plan_.lanes / common_, period_) : 0;

  std::vector<size_t> later;
  for (size_t i = 0; i < plan_.extra_position.size(); ++i) {
    const int64_t g = plan_.extra_position[i];
    if (g < 0) refuse_plan("a position below 0");
    if (g >= length) {
      later.push_back(i);
      continue;
    }
    const bool is_head = plan_.extra_step[i] < plan_.begin;
    const int64_t last = plan_.first + plan_.stride * (plan_.count - 1);
    const bool ascends = extras_.empty() || plan_.extra_step[i] > plan_.extra_step[i - 1];
    if (!ascends || (plan_.count > 0 && (is_head ? g >= plan_.first : g <= last))) {
      refuse_plan("positions are not read in ascending order");
    }
    extras_.push_back({g % plan_.lanes, g / plan_.lanes, plan_.extra_step[i]});
  }
  std::ranges::stable_sort(extras_, {}, [](const Extra& e) { return std::tuple(e.lane, e.offset); });
  add_turns(later);

  std::vector<int64_t> lanes;
  if (plan_.count > 0) {
    for (int64_t lane = plan_.first % common_; lane < plan_.lanes; lane += common_) lanes.push_back(lane);
  }
  for (const Extra& extra : extras_) lanes.push_back(extra.lane);
  std::ranges::sort(lanes);
  lanes.erase(std::unique(lanes.begin(), lanes.end()), lanes.end());
  cursors_.reserve(lanes.size());
  for (const int64_t lane : lanes) {
    Cursor cursor;
    cursor.lane = lane;
    const auto [from, to] = std::ranges::equal_range(extras_, lane, {}, &Extra::lane);
    cursor.extra = static_cast<size_t>(from - extras_.begin());
    cursor.extra_end = static_cast<size_t>(to - extras_.begin());
    int64_t first = kNever;
    const int64_t rows = lane_begin(lane + 1) - lane_begin(lane);
    if (plan_.count > 0 && modulo(plan_.first - lane, common_) == 0) {
      first = std::max<int64_t>(0, ceil_div(plan_.first - lane, plan_.lanes));
      cursor.last = floor_div(plan_.first + plan_.stride * (plan_.count - 1) - lane, plan_.lanes);
    }
    if (cursor.extra < cursor.extra_end) {
      first = std::min(first, extras_[cursor.extra].offset);
      cursor.last = std::max(cursor.last, extras_[cursor.extra_end - 1].offset);
    }
    cursor.last = std::min(cursor.last, rows - 1);
    if (first > cursor.last) continue;
    seek(cursor, first);
    if (!advance(cursor)) continue;
    cursors_.push_back(std::move(cursor));
    heap_.push_back(cursors_.size() - 1);
  }
  std::ranges::make_heap(heap_, std::greater{}, [this](size_t i) { return cursors_[i].group.first_step; });
}

std::shared_ptr<const OwnedPlan> Unfolding::next(size_t most) {
  if (heap_.empty() && turns_.empty()) return nullptr;
  auto window = std::make_shared<OwnedPlan>();
  window->whole = whole_;
  window->plan = plan_;  // with the spans of what the window borrows
  window->group_begin.push_back(0);
  const auto step_of = [this](size_t i) { return cursors_[i].group.first_step; };
  while (window->group_lane.size() < most && !(heap_.empty() && turns_.empty())) {
    if (heap_.empty() || (!turns_.empty() && turns_.back().first_step < step_of(heap_.front()))) {
      append(turns_.back(), *window);
      turns_.pop_back();
      continue;
    }
    std::ranges::pop_heap(heap_, std::greater{}, step_of);
    Cursor& cursor = cursors_[heap_.back()];
    append(cursor.group, *window);
    const int64_t before = cursor.group.first_step;
    if (!advance(cursor)) {
      cursor.held_indices = {};
      heap_.pop_back();
      continue;
    }
    if (cursor.group.first_step < before) refuse_plan("a lane does not go on with later steps");
    std::ranges::push_heap(heap_, std::greater{}, step_of);
  }
  window->bind_groups();
  return window;
}

int64_t Unfolding::lane_begin(int64_t lane) const {
  return lane * (plan_.length / plan_.lanes) + std::min(lane, plan_.length % plan_.lanes);
}

void Unfolding::seek(Cursor& cursor, int64_t offset) const {
  const int64_t begin = lane_begin(cursor.lane);
  const BlockOrder::Seat first = block_order_.find(begin);
  const int64_t piece = block_order_.find(begin + offset).ordinal - first.ordinal;
  cursor.number = piece / whole_->mix;
  const int64_t skipped = cursor.number * whole_->mix;
  const BlockOrder::Seat seat = skipped == 0 ? first : block_order_.at(first.ordinal + skipped);
  cursor.ordinal = seat.ordinal;
  cursor.begin = seat.begin;
  cursor.held_indices.clear();
  cursor.used = 0;
}

bool Unfolding::make_group(Cursor& cursor) const {
  const int64_t begin = lane_begin(cursor.lane);
  const int64_t end = lane_begin(cursor.lane + 1);
  if (cursor.begin >= end) return false;
  Group& group = cursor.group;
  group.lane = cursor.lane;
  group.number = cursor.number++;
  group.turn = 0;
  group.offset = std::max<int64_t>(0, cursor.begin - begin);
  group.rows = 0;
  group.pieces.clear();
  for (int64_t i = 0; i < whole_->mix && cursor.begin < end; ++i) {
    if (cursor.used == cursor.held_indices.size()) {
      block_order_.unfold(cursor.ordinal, cursor.held_indices);
      cursor.used = 0;
    }
    const BlockRows block = block_order_.table().at(cursor.held_indices[cursor.used++]);
    const int64_t from = std::max(begin, cursor.begin);
    const int64_t to = std::min(end, cursor.begin + block.rows);
    group.pieces.push_back({block, from - cursor.begin, to - from});
    group.rows += to - from;
    cursor.begin += block.rows;
    ++cursor.ordinal;
  }
  return true;
}

bool Unfolding::advance(Cursor& cursor) const {
  const int64_t lane = lane_begin(cursor.lane);
  while (cursor.begin - lane <= cursor.last && make_group(cursor)) {
    find_steps(cursor);
    if (cursor.group.first_step <= cursor.group.last_step) return true;
  }
  return false;
}

void Unfolding::find_steps(Cursor& cursor) const {
  Group& group = cursor.group;
  group.first_step = kNever;
  group.last_step = -1;
  // Position j of a lane is global position lane + lanes * j; the consumer has it if that is first + stride * step.
  const int64_t ahead = plan_.first - group.lane;
  if (plan_.count > 0 && modulo(ahead, common_) == 0) {
    const auto residue =
        static_cast<int64_t>(static_cast<__int128>(modulo(floor_div(ahead, common_), period_)) * inverse_ % period_);
    const int64_t low = std::max(group.offset, ceil_div(ahead, plan_.lanes));
    const int64_t high =
        std::min(group.offset + group.rows - 1, floor_div(ahead + plan_.stride * (plan_.count - 1), plan_.lanes));
    const int64_t first = low + modulo(residue - low, period_);
    const int64_t last = high - modulo(high - residue, period_);
    if (first <= last) {
      group.first_step = plan_.begin + (group.lane + plan_.lanes * first - plan_.first) / plan_.stride;
      group.last_step = plan_.begin + (group.lane + plan_.lanes * last - plan_.first) / plan_.stride;
    }
  }
  const int64_t end = group.offset + group.rows;
  for (; cursor.extra < cursor.extra_end && extras_[cursor.extra].offset < end; ++cursor.extra) {
    group.first_step = std::min(group.first_step, extras_[cursor.extra].step);
    group.last_step = std::max(group.last_step, extras_[cursor.extra].step);
  }
}

void Unfolding::add_turns(const std::vector<size_t>& extras) {
  struct Visit {
    int64_t turn, lane, offset, step;
  };
  std::vector<Visit> visits;
  for (const size_t i : extras) {
    const int64_t g = plan_.extra_position[i] % plan_.length;
    visits.push_back({plan_.extra_position[i] / plan_.length, g % plan_.lanes, g / plan_.lanes, plan_.extra_step[i]});
  }
  std::ranges::sort(visits, {}, [](const Visit& v) { return std::tuple(v.turn, v.lane, v.offset); });
  for (const Visit& visit : visits) {
    Group* group = turns_.empty() ? nullptr : &turns_.back();
    if (group == nullptr || group->turn != visit.turn || group->lane != visit.lane ||
        visit.offset >= group->offset + group->rows) {
      Cursor cursor;
      cursor.lane = visit.lane;
      seek(cursor, visit.offset);
      make_group(cursor);
      group = &turns_.emplace_back(std::move(cursor.group));
      group->turn = visit.turn;
      group->first_step = group->last_step = visit.step;
    }
    group->first_step = std::min(group->first_step, visit.step);
    group->last_step = std::max(group->last_step, visit.step);
  }
  std::ranges::sort(turns_, std::greater{}, &Group::first_step);
}

void Unfolding::append(const Group& group, OwnedPlan& out) {
  out.group_lane.push_back(group.lane);
  out.group_offset.push_back(group.offset);
  out.group_number.push_back(group.number);
  out.group_turn.push_back(group.turn);
  out.first_step.push_back(group.first_step);
  out.last_step.push_back(group.last_step);
  for (const Piece& piece : group.pieces) {
    out.segment_block.push_back(piece.block.block);
    out.segment_first.push_back(piece.block.first);
    out.segment_rows.push_back(piece.block.rows);
    out.segment_start.push_back(piece.start);
    out.segment_length.push_back(piece.length);
  }
  out.group_begin.push_back(std::ssize(out.segment_block));
}

void list_unfolded(const std::shared_ptr<const OwnedPlan>& plan, std::span<int64_t> out) {
  constexpr size_t kGroupsAtOnce = 1024;
  Unfolding unfolding(plan);
  while (const auto window = unfolding.next(kGroupsAtOnce)) list_order(window->plan, out);
}

}  // namespace zarrfeed
