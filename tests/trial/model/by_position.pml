/*
 * How foreachBatch commits under asynchronous progress tracking, if the rows carry their position in Kafka.
 *
 * Spark writes the entries of some batches, beside the processing, and goes on from those after a kill: ids come again
 * with other ranges (docs/adr/0010-positions-and-spans.md). `make model` searches every order of events within these
 * bounds. What is asserted: once a batch is published or skipped, all records before its end are in the table, each of
 * them once. A guard is taken away with -DNO_<name>, and then this must fail. Lines that are printed are replayed
 * against the real commit by ../test_model.py.
 */
#ifndef DRIVERS
#define DRIVERS 2
#endif
#ifndef STARTS
#define STARTS 3	/* runs, of all drivers */
#endif
#ifndef FAULTS
#define FAULTS 2	/* of those that cost one, below */
#endif
#ifndef BATCHES
#define BATCHES 4	/* batch ids, from 0 */
#endif
#ifndef RECORDS
#define RECORDS 4	/* of one partition; a batch reads one or two */
#endif
#define NONE 255

/* A history that Spin plays by chance would otherwise be killed too soon to tell anything. */
#ifdef PLAYED
#define OFTEN :: skip :: skip :: skip :: skip :: skip :: skip :: skip :: skip :: skip :: skip :: skip :: skip :: skip
#else
#define OFTEN
#endif

/* An entry of offsets/. Its text is a number, which grows with the time at which the batch is planned. */
typedef Entry { byte text; byte end };
typedef Checkpoint { byte query; Entry offsets[BATCHES]; bool commits[BATCHES] };
/* A record of the writer's generation: there is one if it has a token. */
typedef Recorded { byte text; byte by; byte token };
/* `position` and `end` are those of the last record. The table has `rows[r]` rows of record r. */
typedef Database {
	byte query; byte next; byte owner; byte owners; byte position; byte end;
	Recorded batches[BATCHES]; byte rows[RECORDS]
};
/* What Spark's thread has still to write: one entry, and after it one commit. Two drivers may want the same entry. */
typedef Later { bool offset; byte number; byte text; byte end; bool commit; byte committed; bool failed };

Checkpoint checkpoint, older, nothing;
Database now, standby, no_rows;
Later later[DRIVERS + 1];
byte texts, runs, queries, alive;
byte faults = FAULTS;
byte filtered;			/* the one record that the query does not select, or none */
byte holder;			/* the driver whose transaction has the writer's row, or 0 */
bool broken[DRIVERS + 1];	/* its session was ended */
/* Only used within a step. */
hidden byte i, found_end;
hidden byte fenced, is_next;

mtype = { NEW, OVERLAP, LANDED, REPLAY, FOREIGN, UNKNOWN, FENCED, DUPLICATE, CHANGED, GAP, DISJOINT, BACKWARD };

inline copy_checkpoint(from, to) {
	to.query = from.query;
	for (i : 0 .. BATCHES - 1) {
		to.offsets[i].text = from.offsets[i].text;
		to.offsets[i].end = from.offsets[i].end;
		to.commits[i] = from.commits[i]
	}
}

inline copy_database(from, to) {
	to.query = from.query; to.next = from.next; to.owner = from.owner; to.owners = from.owners;
	to.position = from.position; to.end = from.end;
	for (i : 0 .. BATCHES - 1) {
		to.batches[i].text = from.batches[i].text;
		to.batches[i].by = from.batches[i].by;
		to.batches[i].token = from.batches[i].token
	}
	for (i : 0 .. RECORDS - 1) { to.rows[i] = from.rows[i] }
}

/* To an asynchronous standby, or a backup: rows and ledger together. */
inline may_be_replicated() {
	if :: skip :: faults > 0 -> copy_database(now, standby); printf("replicate\n") fi
}

/* With the last fault, copies are worth nothing: fewer states differ. */
inline fault() {
	faults--;
	if :: faults == 0 -> copy_checkpoint(nothing, older); copy_database(no_rows, standby) :: else fi
}

inline may_be_kept() {
	if :: skip :: faults > 0 -> copy_checkpoint(checkpoint, older); printf("keep\n") fi
}

/* The newest entry before `before`: its number (NONE if there is none), its end and its text. */
inline find_entry(before) {
	found = NONE; found_end = 0; found_text = 0; i = before;
	do
	:: i > 0 && found == NONE ->
		i--;
		if
		:: checkpoint.offsets[i].text == 0
		:: else -> found = i; found_end = checkpoint.offsets[i].end; found_text = checkpoint.offsets[i].text
		fi
	:: else -> break
	od
}

/* offsets_store/verdict/decide.py; the positions that the rows span are the range of the batch. */
inline decide() {
	fenced = (now.owners & (1 << mine)) != 0 && now.owner != mine;
	if
	:: now.query != 0 && now.query != query -> verdict = FOREIGN
	:: now.query == 0 && n > 0 -> verdict = UNKNOWN
	:: now.query == 0 && n == 0 -> verdict = NEW
#ifndef NO_TOKEN
	:: now.query == query && now.batches[n].token == token -> verdict = LANDED
#endif
	:: else ->
		if
		:: fenced -> verdict = FENCED
		:: !fenced && now.batches[n].by == mine -> verdict = DUPLICATE
#ifdef NO_STORED
		:: !fenced && now.batches[n].by != mine && n < now.next && now.batches[n].text == text -> verdict = REPLAY
#else
		:: !fenced && now.batches[n].by != mine && n < now.next && now.batches[n].text == text &&
			end <= now.position -> verdict = REPLAY
#endif
		:: else -> by_position()
		fi
	fi
}

inline by_position() {
	is_next = n == now.next;
	verdict = NEW;
	if
	:: now.owner == mine ->
		if
#ifndef NO_NEXT
		:: !is_next -> verdict = (n < now.next -> CHANGED : GAP)
#endif
#ifndef NO_BACKWARD
		:: is_next && start < now.end -> verdict = BACKWARD
#endif
		:: else
		fi
	:: now.owner != mine ->
		/* It begins after a recorded entry; or where rows are stored, or were filtered out. */
		if
		:: found != NONE && now.batches[found].token != 0 && found_text != 0 &&
			now.batches[found].text == found_text
#ifndef NO_GAP
		:: else -> if :: start > now.position && start > now.end -> verdict = (n > now.next -> GAP : DISJOINT) :: else fi
#else
		:: else
#endif
		fi
	fi;
	if :: verdict == NEW && !(is_next && start >= now.position) -> verdict = OVERLAP :: else fi
}

/* The rows of records [start, end) are written, but for those that are stored. */
inline write_rows() {
	for (i : 0 .. end - 1) {
		if
		:: i == filtered
#ifdef NO_DROP
		:: i != filtered && i >= start -> now.rows[i]++
#else
		:: i != filtered && i >= start && (verdict == NEW || i >= now.position) -> now.rows[i]++
#endif
		:: else
		fi;
		assert(i == filtered || now.rows[i] == 1)
	}
}

inline record() {
	/* A batch id that comes again begins a generation, which has no older records. */
	if
	:: n < now.next -> for (i : 0 .. BATCHES - 1) {
			now.batches[i].text = 0; now.batches[i].by = 0; now.batches[i].token = 0
		}
	:: else
	fi;
	now.end = end;
	if :: end > now.position -> now.position = end :: else fi;
	now.query = query; now.owner = mine; now.owners = now.owners | (1 << mine);
	now.batches[n].text = text; now.batches[n].by = mine; now.batches[n].token = token;
	now.next = n + 1
}

/* What is known of a batch is not known any more, so that fewer states differ. */
inline forget_batch() {
	start = 0; text = 0; planned = 0; token = 0; found = 0; found_text = 0; verdict = 0; unanswered = false
}

/* The process ends; Postgres rolls its transaction back, and what Spark's thread has not written never comes. */
inline killed() {
	printf("kill %d\n", me);
	if :: holder == me -> holder = 0 :: else fi;
	later[me].offset = false; later[me].commit = false; later[me].failed = false;
	broken[me] = false; alive--; forget_batch(); n = 0; end = 0; mine = 0; query = 0;
	is_first = false; goto end_begin
}

inline may_be_killed() {
#ifdef LIVENESS
	if :: skip :: atomic { runs < STARTS -> killed() } fi
#else
	if :: skip OFTEN :: atomic { killed() } fi
#endif
}

proctype Driver(byte me) {
	byte mine, query, n, start, end, text, planned, token, found, found_text;
	mtype verdict;
	bool unanswered, is_first;
end_begin:
	atomic {
		runs < STARTS -> runs++; mine = runs; alive++; is_first = true;
		if :: checkpoint.query == 0 -> queries++; checkpoint.query = queries :: else fi;
		query = checkpoint.query;
		printf("start %d %d\n", me, mine);
		find_entry(BATCHES);
		if
		:: found == NONE -> n = 0; end = 0
		:: found != NONE && checkpoint.commits[found] -> n = found + 1; end = found_end
		/* The newest entry is run again, from where the entry before it ends, whichever number that has. */
		:: found != NONE && !checkpoint.commits[found] ->
			n = found; end = found_end; planned = found_text;
			find_entry(n);
			start = found_end; is_first = false; goto look
		fi
	}
plan:
	may_be_killed();
end_of_source:
	atomic {
		/* Spark says of a write that failed before it plans the next batch. */
		n < BATCHES && end < RECORDS && !later[me].failed -> start = end;
		if :: end = start + 1 :: start + 2 <= RECORDS -> end = start + 2 fi;
		texts++; planned = texts;
		printf("plan %d %d %d %d\n", me, n, start, end);
		/* The first batch of a run is written down, and later ones from time to time. */
		if
		:: !later[me].offset && !later[me].commit ->
			later[me].offset = true; later[me].number = n; later[me].text = planned; later[me].end = end
		:: !is_first
		fi;
		is_first = false
	}
look:
	may_be_killed();
	atomic {
		/* foreachBatch asks the query what it has planned. */
		if
		:: checkpoint.offsets[n].text != 0 && checkpoint.offsets[n].text != planned -> printf("in use %d\n", me); killed()
		:: else
		fi;
		text = planned;
		found = (n > 0 && checkpoint.offsets[n - 1].text != 0 -> n - 1 : NONE);
		found_text = (found != NONE -> checkpoint.offsets[n - 1].text : 0);
#ifndef NO_START
		if
		:: found != NONE && checkpoint.offsets[n - 1].end != start -> printf("in use %d\n", me); killed()
		:: else
		fi;
#endif
		token = mine * BATCHES + n + 1; unanswered = false;
		printf("describe %d\n", me)
	}
try_it:
	/* BEGIN, the lock on the writer's row, and the verdict. A successor ends the session of one that does not go on. */
	atomic {
#ifndef NO_LOCK
		if :: holder != 0 && holder != me -> broken[holder] = true :: else fi;
		holder = me;
#endif
		broken[me] = false;
		decide();
		printf("begin %d %e\n", me, verdict);
		if
		:: verdict == NEW || verdict == OVERLAP
		:: verdict == LANDED || verdict == REPLAY ->
			holder = (holder == me -> 0 : holder);
			for (i : 0 .. end - 1) { assert(i == filtered || now.rows[i] == 1) }
			goto done
		/* Whatever else is refused: a batch that is there, and of which only the answer was lost, is not. */
		:: else -> assert(!(unanswered && verdict == DUPLICATE)); killed()
		fi
	}
	atomic {
		if
		:: broken[me] -> printf("broken %d\n", me); goto try_it
		:: else ->
			write_rows();
			record();
			holder = (holder == me -> 0 : holder);
			if
			:: printf("committed %d\n", me); may_be_replicated()
			:: faults > 0 -> fault(); unanswered = true; printf("unanswered %d\n", me); may_be_replicated(); goto try_it
			fi
		fi
	}
done:
	/* If it is killed here, what it notes now is not written. */
	atomic {
		/* The commit of a batch that is written down is written after it. */
		if
		:: later[me].offset && later[me].number == n -> later[me].commit = true; later[me].committed = n
		:: !later[me].offset && checkpoint.offsets[n].text == planned -> later[me].commit = true; later[me].committed = n
		:: else
		fi;
		printf("note %d\n", me); n++; forget_batch()
	}
	goto plan
}

/* Spark's thread, which writes beside the processing, in order; a driver whose entry another one has written fails. */
proctype Writes(byte me) {
end_of_writes:
	do
	:: atomic { later[me].offset ->
		later[me].offset = false;
		if
		:: checkpoint.offsets[later[me].number].text == 0 ->
			checkpoint.offsets[later[me].number].text = later[me].text;
			checkpoint.offsets[later[me].number].end = later[me].end;
			printf("write %d %d\n", me, later[me].number);
			later[me].text = 0; later[me].end = 0; later[me].number = 0;
			may_be_kept()
		:: else -> later[me].failed = true
		fi }
	:: atomic { !later[me].offset && later[me].commit ->
		later[me].commit = false;
		if
		:: !later[me].failed -> checkpoint.commits[later[me].committed] = true;
			printf("write commit %d %d\n", me, later[me].committed);
			may_be_kept()
		:: else
		fi }
	od
}

/* What happens to a checkpoint and to a database. */
proctype World() {
end_of_world:
	do
#ifdef PLAYED
	:: skip OFTEN
#endif
	:: atomic { faults > 0 -> copy_database(standby, now); holder = 0;
		for (i : 1 .. DRIVERS) { broken[i] = true }
		printf("fail over\n"); fault() }
	:: atomic { alive == 0 && older.query != 0 && faults > 0 ->
		copy_checkpoint(older, checkpoint); printf("older checkpoint\n"); fault() }
	:: atomic { alive == 0 && checkpoint.query != 0 && faults > 0 ->
		copy_checkpoint(nothing, checkpoint); printf("lost checkpoint\n"); fault() }
	od
}

init {
	byte d;
	atomic {
#ifdef ALL_SELECTED
		filtered = RECORDS;
#else
		if :: filtered = RECORDS :: filtered = 1 fi;
#endif
		printf("filter %d\n", filtered);
		printf("replicate\n");
		for (d : 1 .. DRIVERS) { run Driver(d); run Writes(d) }
		run World()
	}
}

#ifdef LIVENESS
ltl goes_on { <> (now.end == RECORDS) }
#endif
