package store

// Metrics are figures for operators, at one instant.
type Metrics struct {
	DiskBytes      uint64 // all files of the folder that are in use
	LogBytes       uint64 // of which the log
	MemTableBytes  uint64 // in memory, not yet a table
	CacheBytes     int64
	TableFiles     int64
	Compactions    int64
	Syncs          int64 // of the log, made
	SyncsSkipped   int64 // of the log, not needed: only Written batches
	DurablePending int64 // Durable batches that do not hold yet

	// The following fields count since the folder was opened; see DESIGN.md, Damage.
	BadRecords       int64 // reads that met a record which does not decode
	BadBlocks        int64 // reads that met a damaged block
	CutBytes         int64 // bytes of the newest log's torn end, cut off at the start
	CutRecords       int64 // records in these bytes that could be told apart
	BackgroundErrors int64 // flushes and compactions that failed and were tried again
}

// Metrics returns the figures. It takes a lock of the engine and is meant to be
// called now and then, not for each request.
func (s *Store) Metrics() Metrics {
	m := Metrics{
		Syncs:          s.gate.real.Load(),
		SyncsSkipped:   s.gate.skipped.Load(),
		DurablePending: s.gate.durable.Load(),

		BadRecords:       s.damage.records.Load(),
		BadBlocks:        s.damage.blocks.Load(),
		CutBytes:         s.damage.cutBytes.Load(),
		CutRecords:       s.damage.cutRecords.Load(),
		BackgroundErrors: s.damage.background.Load(),
	}
	if !s.users.enter() {
		return m
	}
	defer s.users.leave()
	p := s.db.Metrics()
	m.DiskBytes = p.DiskSpaceUsage()
	m.LogBytes = p.WAL.PhysicalSize
	m.MemTableBytes = p.MemTable.Size
	m.CacheBytes = p.BlockCache.Size
	m.TableFiles = p.Total().TablesCount
	m.Compactions = p.Compact.Count
	return m
}
