#include "batcher.h"

#include <algorithm>
#include <cstring>
#include <new>
#include <stdexcept>
#include <utility>

namespace seed_rl {

namespace {

constexpr std::size_t kAlignment = 64;

std::size_t aligned(std::size_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

}  // namespace

Batch::Batch(int index, const std::vector<std::size_t>& row_sizes, std::size_t capacity)
    : index_(index) {
    std::size_t total = aligned(capacity);
    for (const std::size_t size : row_sizes) total += aligned(capacity * size);
    memory_.reset(std::aligned_alloc(kAlignment, total));
    if (!memory_) throw std::bad_alloc();
    std::memset(memory_.get(), 0, total);
    auto* place = static_cast<std::uint8_t*>(memory_.get());
    for (const std::size_t size : row_sizes) {
        columns_.push_back(place);
        place += aligned(capacity * size);
    }
    columns_.push_back(place);
}

void Batch::compact(const std::vector<std::size_t>& row_sizes) {
    std::size_t size = 0;
    for (Call& call : calls_) {
        if (call.state == Call::State::kDropped) continue;
        for (std::size_t field = 0; field < columns_.size(); ++field) {
            const std::size_t row_size = field < row_sizes.size() ? row_sizes[field] : 1;
            std::memmove(columns_[field] + size * row_size, columns_[field] + call.first * row_size,
                         call.n * row_size);
        }
        call.first = size;
        size += call.n;
    }
    size_ = size;
    calls_.erase(std::remove_if(calls_.begin(), calls_.end(),
                                [](const Call& call) { return call.state == Call::State::kDropped; }),
                 calls_.end());
    num_dropped_ = 0;
}

Batcher::Batcher(std::vector<std::size_t> row_sizes, std::size_t capacity, Seconds timeout,
                 std::function<void()> call_for_eviction)
    : row_sizes_(std::move(row_sizes)),
      capacity_(capacity),
      timeout_(std::chrono::duration_cast<Clock::duration>(timeout)),
      call_for_eviction_(std::move(call_for_eviction)) {
    // One to fill while the other is read.
    for (int i = 0; i < 2; ++i) {
        batches_.push_back(std::make_unique<Batch>(i, row_sizes_, capacity_));
        free_.push_back(batches_.back().get());
    }
}

void Batcher::open(Source& source) {
    const std::lock_guard lock(mutex_);
    source.is_open_ = true;
    source.is_awaited_ = true;
    source.since_ = Clock::now();
    ++num_awaited_;
}

void Batcher::end(Source& source) {
    const std::lock_guard lock(mutex_);
    if (!source.is_open_) return;
    source.is_open_ = false;
    if (source.batch_ != nullptr) {
        Batch& batch = *source.batch_;
        if (batch.calls_[source.call_].state == Call::State::kFilling) {
            drop_locked(source);
        } else if (&batch == open_) {
            // Whoever takes the environments over may send the same ids any moment.
            seal(batch);
        }
    }
    stop_waiting(source);
}

Batcher::Reservation Batcher::reserve(const std::shared_ptr<Source>& source, std::size_t n) {
    const std::lock_guard lock(mutex_);
    if (open_ != nullptr && open_->size_ + n > capacity_) seal(*open_);
    Batch& batch = open_batch();
    const std::size_t first = batch.size_;
    source->batch_ = &batch;
    source->call_ = batch.calls_.size();
    batch.calls_.push_back({source, first, n, Call::State::kFilling});
    batch.size_ += n;
    ++batch.num_filling_;
    if (batch.size_ == capacity_) seal(batch);
    return {&batch, first};
}

void Batcher::complete(Source& source) {
    const std::lock_guard lock(mutex_);
    Batch& batch = *source.batch_;
    batch.calls_[source.call_].state = Call::State::kComplete;
    --batch.num_filling_;
    ++batch.num_complete_;
    const bool was_closed = batch.state_ == Batch::State::kClosed;
    stop_waiting(source);  // may close it
    if (was_closed) settle(batch);
    // Whoever waits may have to wait less now.
    if (&batch == open_ && num_waiting_ > 0 && batch.num_complete_ == 1) changed_.notify_one();
}

void Batcher::drop(Source& source) {
    const std::lock_guard lock(mutex_);
    drop_locked(source);
}

void Batcher::drop_locked(Source& source) {
    Batch& batch = *source.batch_;
    batch.calls_[source.call_].state = Call::State::kDropped;
    --batch.num_filling_;
    ++batch.num_dropped_;
    source.batch_ = nullptr;
    if (&batch == open_ && batch.num_filling_ == 0 && batch.num_complete_ == 0) {
        // Its deadline is nobody's any more.
        open_ = nullptr;
        batch.calls_.clear();
        batch.is_replied_ = true;
        free_if_unused(batch);
    } else {
        settle(batch);
    }
}

std::vector<std::shared_ptr<Source>> Batcher::overdue() {
    const std::lock_guard lock(mutex_);
    std::vector<std::shared_ptr<Source>> sources;
    for (const Batch* batch : closed_) {
        if (!batch->is_overdue_) continue;
        for (const Call& call : batch->calls_) {
            if (call.state == Call::State::kFilling) sources.push_back(call.source);
        }
    }
    return sources;
}

bool Batcher::is_overdue(const Source& source) {
    const std::lock_guard lock(mutex_);
    return source.batch_ != nullptr && source.batch_->is_overdue_ &&
           source.batch_->calls_[source.call_].state == Call::State::kFilling;
}

void Batcher::forget_if_silent(Source& source, Clock::time_point since) {
    const std::lock_guard lock(mutex_);
    if (source.is_awaited_ && source.since_ < since) stop_waiting(source);
}

Clock::time_point Batcher::silent_since(const Source& source) {
    const std::lock_guard lock(mutex_);
    const bool is_under_way = source.batch_ != nullptr && source.batch_->calls_[source.call_].state ==
                                                              Call::State::kComplete;
    return is_under_way || !source.is_open_ ? Clock::time_point::max() : source.since_;
}

Batcher::Taken Batcher::take(Seconds timeout) {
    const auto until = Clock::now() + std::chrono::duration_cast<Clock::duration>(timeout);
    std::unique_lock lock(mutex_);
    give_back();
    while (true) {
        if (is_closed_) return {Taken::Outcome::kClosed};
        const auto now = Clock::now();
        if (closed_.empty() && open_ != nullptr && open_->num_complete_ > 0 &&
            now >= open_->deadline_) {
            seal(*open_);
        }
        auto wake = until;
        if (!closed_.empty()) {
            Batch& batch = *closed_.front();
            if (batch.num_filling_ == 0) {
                closed_.pop_front();
                batch.state_ = Batch::State::kTaken;
                batch.is_held_ = true;
                held_[std::this_thread::get_id()] = &batch;
                watch_on();
                const std::uint8_t* restarted = batch.restarted();
                const auto num_restarted = static_cast<std::size_t>(
                    std::count(restarted, restarted + batch.size_, std::uint8_t{1}));
                return {Taken::Outcome::kBatch, &batch, batch.size_, num_restarted};
            }
            if (now < batch.deadline_) {
                wake = std::min(until, batch.deadline_);
            } else if (!batch.is_overdue_) {
                batch.is_overdue_ = true;
                lock.unlock();
                call_for_eviction_();
                lock.lock();
                continue;
            }
        } else if (open_ != nullptr && open_->num_complete_ > 0) {
            wake = std::min(until, open_->deadline_);
        }
        if (now >= until) {
            watch_on();
            return {Taken::Outcome::kTimeout};
        }
        ++num_waiting_;
        changed_.wait_until(lock, wake);
        --num_waiting_;
    }
}

void Batcher::replied(int index, std::vector<Call>& calls) {
    const std::lock_guard lock(mutex_);
    Batch& taken = *batches_.at(static_cast<std::size_t>(index));
    if (taken.state_ != Batch::State::kTaken || taken.is_replied_) {
        throw std::logic_error("a batch was replied to twice");
    }
    taken.is_replied_ = true;
    const auto now = Clock::now();
    calls.swap(taken.calls_);
    for (const Call& call : calls) {
        Source& source = *call.source;
        source.batch_ = nullptr;
        source.since_ = now;
        if (source.is_open_) {
            source.is_awaited_ = true;
            ++num_awaited_;
        }
    }
    free_if_unused(taken);
}

Batch& Batcher::batch(int index) {
    const std::lock_guard lock(mutex_);
    return *batches_.at(static_cast<std::size_t>(index));
}

void Batcher::close() {
    const std::lock_guard lock(mutex_);
    is_closed_ = true;
    changed_.notify_all();
}

void Batcher::count(std::uint64_t& rows, std::uint64_t& batches) {
    const std::lock_guard lock(mutex_);
    rows = num_rows_;
    batches = num_batches_;
}

Batch& Batcher::open_batch() {
    if (open_ != nullptr) return *open_;
    if (free_.empty()) {
        const auto index = static_cast<int>(batches_.size());
        batches_.push_back(std::make_unique<Batch>(index, row_sizes_, capacity_));
        free_.push_back(batches_.back().get());
    }
    Batch& batch = *free_.back();
    free_.pop_back();
    batch.state_ = Batch::State::kOpen;
    batch.size_ = batch.num_filling_ = batch.num_complete_ = batch.num_dropped_ = 0;
    batch.is_overdue_ = batch.is_replied_ = false;
    batch.deadline_ = Clock::now() + timeout_;
    open_ = &batch;
    return batch;
}

void Batcher::seal(Batch& batch) {
    batch.state_ = Batch::State::kClosed;
    open_ = nullptr;
    closed_.push_back(&batch);
    settle(batch);
    // Nobody may be told of its deadline otherwise.
    if (batch.num_filling_ > 0) changed_.notify_one();
}

void Batcher::settle(Batch& batch) {
    if (batch.state_ != Batch::State::kClosed || batch.num_filling_ > 0) return;
    if (batch.num_dropped_ > 0) batch.compact(row_sizes_);
    if (batch.size_ == 0) {
        closed_.erase(std::find(closed_.begin(), closed_.end(), &batch));
        batch.is_replied_ = true;
        free_if_unused(batch);
        changed_.notify_one();  // the next one may be ready
        return;
    }
    for (std::size_t i = 0; i < batch.calls_.size(); ++i) batch.calls_[i].source->call_ = i;
    ++num_batches_;
    num_rows_ += batch.size_;
    changed_.notify_one();
}

void Batcher::stop_waiting(Source& source) {
    if (source.is_awaited_) {
        source.is_awaited_ = false;
        --num_awaited_;
    }
    if (num_awaited_ == 0 && open_ != nullptr && open_->num_complete_ > 0) seal(*open_);
}

// Who leaves may have been the only one who was told of a deadline.
void Batcher::watch_on() {
    if (num_waiting_ > 0 &&
        (!closed_.empty() || (open_ != nullptr && open_->num_complete_ > 0))) {
        changed_.notify_one();
    }
}

void Batcher::give_back() {
    const auto held = held_.find(std::this_thread::get_id());
    if (held == held_.end()) return;
    Batch& batch = *held->second;
    held_.erase(held);
    batch.is_held_ = false;
    free_if_unused(batch);
}

void Batcher::free_if_unused(Batch& batch) {
    if (batch.is_held_ || !batch.is_replied_) return;
    batch.state_ = Batch::State::kFree;
    free_.push_back(&batch);
}

}  // namespace seed_rl
