#pragma once

// Finds the node that Place wants without looking at all of them.

#include <array>
#include <cstdint>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "runtime/base/id.h"
#include "runtime/base/prng.h"
#include "runtime/base/resources.h"
#include "scheduler/cluster_view.h"
#include "scheduler/demand.h"
#include "scheduler/score_tree.h"

namespace argosy::scheduler {

// Nodes lie in slots in the order of joining, nodes without GPU on one side and those with on the other. Three ways lead to the one that a demand
// wants; all take the same node, but for ties:
//
//   columns   A shape that was asked for a few times gets a column in score trees, which know for each shape and node whether it fits now and how
//             good it is. Every change of a node is told to all columns at once; a decision follows one path down. This is the usual way.
//   lists     The nodes by label and by resource name, for shapes that only a few nodes can match.
//   bounds    For shapes asked for the first time, and those beyond the number of columns: a tree whose vertices know the most that is available
//             of each resource and the least utilization and last use below them, so that a search skips what cannot fit. Labels are checked
//             at its leaves only, so a search that few nodes match may visit many.
//
// Changes are noted and told to the trees when they are asked next.
//
// Thread:   its owner's.
// Lifetime: the views it was given must stay where they are until Erase.
class NodeIndex {
 public:
  explicit NodeIndex(ClusterViewOptions options) : options_(options) { Init(); }

  // Adds the node or notes that it changed. `identity_changed`: also its labels, or whether it is alive or draining.
  void Put(const NodeView& node, bool identity_changed);
  // The node's labels are about to change; Put must follow.
  void ForgetLabels(const NodeView& node);
  void Erase(NodeId id);

  // The node that Place chooses for a demand with DefaultStrategy or SpreadStrategy, or null. Learns which shapes are asked for.
  const NodeView* Pick(const Demand& demand, Prng& prng);
  // The first node that fits the demand with DefaultStrategy, however much of it is used; nodes without GPU first, when it needs none.
  const NodeView* FirstFit(const Demand& demand);
  // Up to `count` nodes that fit it, the least used first; nodes without GPU first, when it needs none. None when the index cannot tell: the
  // shape has no column and many nodes can match it.
  std::optional<std::vector<const NodeView*>> LeastUsed(const Demand& demand, size_t count);

  // Shapes that have a column.
  size_t column_count() const;

 private:
  // The dimensions that Utilization looks at come first.
  static constexpr size_t kCriticalDimensions = 4;
  // Resources beyond these are not in the bounds: checked at the leaves only.
  static constexpr size_t kBoundsMax = 16;
  // So few candidates are looked at one by one when a shape has no column.
  static constexpr size_t kFewMax = 64;
  static constexpr size_t kKnownShapesMax = 4'096;

  using NodeList = std::vector<const NodeView*>;   // in the order of joining

  struct Bound {
    std::array<int64_t, kBoundsMax> available;                       // the most of any slot below
    int64_t utilization = std::numeric_limits<int64_t>::max();       // the least of any slot below; max: no usable node below
    int64_t last_taken = std::numeric_limits<int64_t>::max();
    Bound() { available.fill(std::numeric_limits<int64_t>::min()); }
  };
  // Slots that changed since they were last told to a tree, or all of them.
  struct Dirty {
    std::vector<uint32_t> slots;
    bool all = false;
    void Add(uint32_t slot, size_t leaves);
  };
  struct Slot {
    const NodeView* node = nullptr;      // null: erased
    std::vector<uint32_t> dimensions;    // of its total, in the order of the names
    bool identity_changed = false;
    bool in_columns_dirty = false;
    bool in_bounds_dirty = false;
  };
  struct Side {
    size_t leaves = 0;          // a power of two, or 0
    size_t next_slot = 0;
    size_t count = 0;
    std::vector<Slot> slots;
    std::vector<Bound> bounds;   // 1 is the root; slot i is leaves + i
    Dirty columns_dirty;
    Dirty bounds_dirty;
  };
  struct Place {
    bool with_gpu = false;
    uint32_t slot = 0;
    bool labelled = false;   // in by_label_
  };

  // What a node has now, read once for all columns.
  struct Reading {
    std::vector<std::pair<uint32_t, int64_t>> available;   // dimension and amount
    int64_t utilization = 0;
    int64_t last_taken = 0;
    bool usable = false;
  };

  struct ColumnShape {
    ResourceSet resources;
    LabelSelector labels;
    bool spread = false;
  };
  struct ColumnShapeRef {
    const ResourceSet& resources;
    const LabelSelector& labels;
    bool spread = false;
  };
  struct ShapeHash {
    using is_transparent = void;
    size_t operator()(const ColumnShapeRef& shape) const;
    size_t operator()(const ColumnShape& shape) const { return (*this)(ColumnShapeRef{shape.resources, shape.labels, shape.spread}); }
  };
  struct ShapeEqual {
    using is_transparent = void;
    template <class A, class B>
    bool operator()(const A& a, const B& b) const {
      return a.spread == b.spread && a.resources == b.resources && a.labels == b.labels;
    }
  };
  struct Known;
  using KnownShapes = std::unordered_map<ColumnShape, Known, ShapeHash, ShapeEqual>;

  // Columns of as many shapes as a vertex of a score tree holds.
  template <class Score>
  struct Block {
    using Tree = ScoreTree<Score>;
    struct Column {
      const ColumnShape* shape = nullptr;   // the key in known_
      uint64_t asked_at = 0;
    };
    // Columns that need at most so much of one dimension. The first entry is of those that need nothing.
    struct Limit {
      int64_t need = 0;
      uint32_t columns = 0;
    };
    std::array<Column, Tree::kWidth> columns;
    size_t used = 0;                             // the first ones; a column that was given out goes from shape to shape
    std::array<std::vector<uint32_t>, 2> may;    // by side and slot: columns that the node may serve when nothing runs there
    std::array<Tree, 2> trees;                   // by side
    std::vector<std::vector<Limit>> limits;      // by dimension, needs ascending; empty: no column needs it

    uint32_t Fitting(const Reading& reading, uint32_t may_serve) const;
    typename Tree::Scores ScoresOf(const Reading& reading, uint32_t may_serve) const;
  };
  template <class Score>
  using Blocks = std::vector<std::unique_ptr<Block<Score>>>;

  // Where a shape's column is, if it has one.
  struct Known {
    uint32_t asked = 0;
    bool has_column = false;
    uint16_t block = 0;
    uint16_t column = 0;
  };

  void Init();
  // The shape's entry; counts the question, and gives it a column when it is time. `few` as FewCandidates says, when it has none.
  Known& Ask(const Demand& demand, bool spread, uint32_t times, const NodeList*& few);
  uint32_t Dimension(std::string_view name);
  void Read(const Slot& slot);
  // Closes the gaps, and doubles the leaves when more than half are in use.
  void Rebuild(size_t side);
  template <class F>
  void ForEachBlock(F f) {
    for (auto& block : packing_) f(*block);
    for (auto& block : spreading_) f(*block);
  }

  // ---- columns
  template <class Score>
  Blocks<Score>& BlocksOf();
  template <class Score>
  const NodeView* PickInColumn(const Known& known, size_t side, Prng& prng);
  // A column for the shape, when one is free or was not used for long.
  template <class Score>
  void Admit(const ColumnShape& shape, Known& known);
  template <class Score>
  void FillColumn(Block<Score>& block, size_t column);
  template <class Score>
  void ReadLimits(Block<Score>& block);
  void TellColumns();
  static bool MayServe(const NodeView& node, const ColumnShape& shape);
  static int16_t ScoreOf(const Reading& reading, int16_t) { return static_cast<int16_t>(reading.utilization); }
  static int64_t ScoreOf(const Reading& reading, int64_t) { return reading.last_taken; }

  // ---- lists
  // Nodes that have a label or resource that `demand` needs, when these are few; null when they are many.
  const NodeList* FewCandidates(const Demand& demand);
  static const NodeView* PickAmong(const NodeList& candidates, bool with_gpu, const Demand& demand, bool spread, Prng& prng);
  // Sides in the order in which they are tried, for a demand that wants a GPU or not.
  static std::pair<size_t, size_t> SidesFor(const Demand& demand);

  // ---- bounds
  using Need = std::vector<std::pair<size_t, int64_t>>;
  Need NeedOf(const ResourceSet& resources) const;
  static bool MayFit(const Bound& bound, const Need& need);
  Bound BoundOf(const Slot& slot);
  Bound JoinBounds(const Bound& a, const Bound& b) const;
  void TellBounds(Side& side);
  const NodeView* PickByBounds(size_t side, const Demand& demand, bool spread, Prng& prng);
  const NodeView* FirstBelow(const Side& side, size_t vertex, const Need& need, int64_t utilization_below, const Demand& demand) const;
  void LeastBelow(const Side& side, size_t vertex, const Need& need, bool by_last_taken, const Demand& demand, Prng& prng,
                  std::pair<int64_t, const NodeView*>& best) const;

  ClusterViewOptions options_;
  std::array<Side, 2> sides_;   // without GPU, with GPU
  std::unordered_map<NodeId, Place> places_;
  std::map<std::string, uint32_t, std::less<>> dimensions_;
  std::map<std::string, NodeList, std::less<>> by_resource_;
  std::map<std::string, std::map<std::string, NodeList, std::less<>>, std::less<>> by_label_;

  KnownShapes known_;
  size_t columns_known_ = 0;   // entries of known_ that have a column
  Blocks<int16_t> packing_;    // by utilization: DefaultStrategy
  Blocks<int64_t> spreading_;  // by last use: SpreadStrategy
  uint64_t asked_ = 0;
  uint64_t next_replacement_ = 0;   // no column goes to another shape before so many questions
  Reading reading_;            // kept for its memory
  NodeList few_;               // kept for its memory
};

}  // namespace argosy::scheduler
