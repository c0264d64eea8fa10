/*
 * How drivers commit micro-batches: Spark's checkpoint, pgonce's ledger, and what may happen to both.
 *
 * `make model` searches every order of events within these bounds. What is asserted: a batch that is published puts the
 * next records of the source into the table, each of them once; a batch that is skipped has all its records there.
 * A guard is taken away with -DNO_<name>, and then one of these must fail. Lines that are printed are replayed against
 * the real commit by ../test_model.py.
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
#define BATCHES 3	/* batch ids, from 0 */
#endif
#ifndef RECORDS
#define RECORDS 4	/* of the source; a batch has one or two */
#endif

/* A history that Spin plays by chance would otherwise be killed too soon to tell anything. */
#ifdef PLAYED
#define OFTEN :: skip :: skip :: skip :: skip :: skip :: skip :: skip :: skip :: skip :: skip :: skip :: skip :: skip
#else
#define OFTEN
#endif

/* An entry of offsets/: the end of the batch, and a number for its text, which is another each time it is planned. */
typedef Entry { byte text; byte end };
typedef Checkpoint { byte query; Entry offsets[BATCHES]; bool commits[BATCHES] };
typedef Recorded { byte text; byte by; byte token };
/* The table has `rows[r]` rows of record r. No query has written while `query` is 0. */
typedef Database { byte query; byte next; byte owner; byte owners; Recorded batches[BATCHES]; byte rows[RECORDS] };

Checkpoint checkpoint, older;
Database now, standby;
byte texts, runs, queries, alive;
byte faults = FAULTS;
bool kept, replicated;
byte holder;			/* the driver whose transaction has the writer's row, or 0 */
bool broken[DRIVERS + 1];	/* its session was ended */

mtype = { NEW, LANDED, REPLAY, FOREIGN, UNKNOWN, FENCED, DUPLICATE, CHANGED, GAP, DISJOINT };

inline copy_checkpoint(from, to) {
	to.query = from.query;
	for (i : 0 .. BATCHES - 1) {
		to.offsets[i].text = from.offsets[i].text;
		to.offsets[i].end = from.offsets[i].end;
		to.commits[i] = from.commits[i]
	}
}

inline copy_elsewhere() {
	copy_checkpoint(older, checkpoint);
	end = 0; n = 0;
	do
	:: n < BATCHES && checkpoint.offsets[n].text != 0 && checkpoint.commits[n] -> end = checkpoint.offsets[n].end; n++
	:: else -> break
	od;
	i = 0;
	if
	:: n < BATCHES && end < RECORDS ->
		if :: i = end + 1 :: end + 2 <= RECORDS -> i = end + 2 fi;
		texts++; checkpoint.offsets[n].text = texts; checkpoint.offsets[n].end = i; checkpoint.commits[n] = true
	:: else
	fi
}

inline copy_database(from, to) {
	to.query = from.query; to.next = from.next; to.owner = from.owner; to.owners = from.owners;
	for (i : 0 .. BATCHES - 1) {
		to.batches[i].text = from.batches[i].text;
		to.batches[i].by = from.batches[i].by;
		to.batches[i].token = from.batches[i].token
	}
	for (i : 0 .. RECORDS - 1) { to.rows[i] = from.rows[i] }
}

/* offsets_store/verdict/decide.py, of batches whose rows carry no positions; `next` is the last batch id plus one. */
inline decide() {
	fenced = (now.owners & (1 << mine)) != 0 && now.owner != mine;
	if
#ifndef NO_FOREIGN
	:: now.query != 0 && now.query != query -> verdict = FOREIGN
#endif
#ifndef NO_UNKNOWN
	:: now.query == 0 && n > 0 -> verdict = UNKNOWN
#endif
#ifndef NO_TOKEN
	:: now.query == query && now.batches[n].token == token -> verdict = LANDED
#endif
	:: else ->
		if
		:: now.query != query -> verdict = NEW
		:: now.query == query && fenced -> verdict = FENCED
		:: now.query == query && n < now.next && now.batches[n].by == mine && !fenced -> verdict = DUPLICATE
		:: else ->
			if
#ifdef NO_TEXT
			:: n < now.next -> verdict = REPLAY
#else
#ifndef NO_REPLAY
			:: n < now.next && now.batches[n].text == text -> verdict = REPLAY
#else
			:: n < now.next && now.batches[n].text == text -> verdict = CHANGED
#endif
			:: n < now.next && now.batches[n].text != text -> verdict = CHANGED
#endif
#ifdef NO_GAP
			:: n > now.next -> verdict = NEW
#else
			:: n > now.next -> verdict = GAP
#endif
			:: n == now.next ->
				if
#ifndef NO_FOLLOWS
				:: n > 0 && now.batches[n - 1].text != before -> verdict = DISJOINT
#endif
				:: else -> verdict = NEW
				fi
			fi
		fi
	fi
}

/* Rows [start, end) are written. A hole before them, or a second row of a record, is what must never be. */
inline write_rows() {
	assert(start == 0 || now.rows[start - 1] == 1);
	for (i : start .. end - 1) { now.rows[i]++; assert(now.rows[i] == 1) }
}

inline record() {
	now.query = query; now.owner = mine; now.owners = now.owners | (1 << mine);
	now.batches[n].text = text; now.batches[n].by = mine; now.batches[n].token = token;
	now.next = n + 1
}

/* The process ends; Postgres rolls its transaction back. */
inline killed() {
	printf("kill %d\n", me);
	if :: holder == me -> holder = 0 :: else fi;
	broken[me] = false; alive--; goto end_begin
}

inline may_be_killed() {
#ifdef LIVENESS
	if :: skip :: atomic { runs < STARTS -> killed() } fi
#else
	if :: skip OFTEN :: atomic { killed() } fi
#endif
}

proctype Driver(byte me) {
	byte mine, query, n, start, end, text, before, token, seen, i;
	mtype verdict;
	bool fenced, races, unanswered;
end_begin:
	atomic {
		runs < STARTS -> runs++; mine = runs; alive++;
		if :: checkpoint.query == 0 -> queries++; checkpoint.query = queries :: else fi;
		query = checkpoint.query; n = BATCHES; end = 0;
		do
		:: n > 0 && checkpoint.offsets[n - 1].text == 0 -> n--
		:: else -> break
		od;
		printf("start %d %d\n", me, mine);
		/* The newest entry is run again if it has no commit; Spark refuses to start where the one before it is missing. */
		if
		:: n > 0 && !checkpoint.commits[n - 1] ->
			n--;
			if
			:: n == 0
			:: n > 0 && checkpoint.offsets[n - 1].text != 0 -> end = checkpoint.offsets[n - 1].end
			:: n > 0 && checkpoint.offsets[n - 1].text == 0 -> killed()
			fi;
			start = end; end = checkpoint.offsets[n].end; text = checkpoint.offsets[n].text; goto commit
		:: n > 0 && checkpoint.commits[n - 1] -> end = checkpoint.offsets[n - 1].end
		:: n == 0
		fi;
		before = 0
	}
plan:
	may_be_killed();
end_of_source:
	atomic {
		n < BATCHES && end < RECORDS -> start = end;
		/* Spark's ConcurrentModificationException, if another driver has written it. */
		if :: checkpoint.offsets[n].text == 0 :: checkpoint.offsets[n].text != 0 -> killed() fi;
		races = false;
#ifndef FORMAT
		if :: skip :: faults > 0 -> faults--; races = true fi
#endif
	}
	/* Where renames are not atomic, one may go over the file of another driver that has looked at the same time. */
	if :: !races :: races -> may_be_killed() fi;
	atomic {
		if
		:: checkpoint.offsets[n].text == 0 || races
		:: checkpoint.offsets[n].text != 0 && !races -> killed()
		fi;
		if :: end = start + 1 :: start + 2 <= RECORDS -> end = start + 2 fi;
		texts++; text = texts;
		checkpoint.offsets[n].text = text; checkpoint.offsets[n].end = end;
		printf("plan %d %d %d %d\n", me, n, start, end);
		printf("write %d %d\n", me, n)
	}
commit:
	may_be_killed();
#ifdef FORMAT
	/* format("pgonce"): the planner's worker notes the newest entry, and the commit's worker compares (Origin). */
	atomic {
		seen = BATCHES;
		do :: checkpoint.offsets[seen - 1].text == 0 && seen > 1 -> seen-- :: else -> break od;
		seen--; text = checkpoint.offsets[seen].text;
		printf("look %d\n", me)
	}
	may_be_killed();
#else
	/* foreachBatch asks the query which entry it has planned, and where that begins. */
	seen = n;
#endif
	atomic {
#ifdef NO_OWN_ENTRY
		if :: checkpoint.offsets[n].text == 0 -> killed() :: else fi;
		text = checkpoint.offsets[n].text;
#else
		if
		:: seen == n && checkpoint.offsets[n].text == text
		:: seen != n || checkpoint.offsets[n].text != text -> printf("in use %d\n", me); killed()
		fi;
#endif
#ifndef FORMAT
#ifndef NO_START
		if
		:: n > 0 && checkpoint.offsets[n - 1].end != start -> printf("in use %d\n", me); killed()
		:: n == 0 || checkpoint.offsets[n - 1].end == start
		fi;
#endif
#endif
		before = 0;
		if :: n > 0 -> before = checkpoint.offsets[n - 1].text :: else fi;
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
		:: verdict == NEW
		:: verdict == LANDED || verdict == REPLAY ->
			holder = (holder == me -> 0 : holder);
			for (i : start .. end - 1) { assert(now.rows[i] == 1) }
			goto done
		/* Whatever else is refused: a batch that is there, and of which only the answer was lost, is not. */
		:: else -> assert(!(unanswered && verdict == DUPLICATE)); killed()
		fi
	}
#ifdef NO_ONE_TRANSACTION
	atomic { !broken[me] -> write_rows() }
	may_be_killed();
#endif
	atomic {
		if
		:: broken[me] -> printf("broken %d\n", me); goto try_it
		:: else ->
#ifndef NO_ONE_TRANSACTION
			write_rows();
#endif
			record();
			holder = (holder == me -> 0 : holder);
			if
			:: printf("committed %d\n", me)
			:: faults > 0 -> faults--; unanswered = true; printf("unanswered %d\n", me); goto try_it
			fi
		fi
	}
done:
	may_be_killed();
	atomic {
		if
		:: checkpoint.offsets[n].text != 0 -> checkpoint.commits[n] = true; printf("write commit %d %d\n", me, n)
		:: else
		fi;
		printf("note %d\n", me); n++
	}
	goto plan
}

/* What happens to a checkpoint and to a database. */
proctype World() {
	byte i, n, end;
end_of_world:
	do
#ifdef PLAYED
	:: skip OFTEN
#endif
	:: atomic { !kept && checkpoint.query != 0 -> kept = true; copy_checkpoint(checkpoint, older); printf("keep\n") }
	:: atomic { !replicated -> replicated = true; copy_database(now, standby); printf("replicate\n") }
	/* To an asynchronous standby, or a backup: rows and ledger go back together. */
	:: atomic { replicated && faults > 0 -> faults--; copy_database(standby, now); holder = 0;
		for (i : 1 .. DRIVERS) { broken[i] = true }
		printf("fail over\n") }
	:: atomic { alive == 0 && kept && faults > 0 -> faults--; copy_checkpoint(older, checkpoint); printf("older checkpoint\n") }
	:: atomic { alive == 0 && checkpoint.query != 0 && faults > 0 -> faults--;
		checkpoint.query = 0;
		for (i : 0 .. BATCHES - 1) {
			checkpoint.offsets[i].text = 0; checkpoint.offsets[i].end = 0; checkpoint.commits[i] = false
		}
		printf("lost checkpoint\n") }
	/* A copy of the checkpoint went on against another database, and is now used for this one. */
	:: atomic { alive == 0 && kept && faults > 0 -> faults--; copy_elsewhere(); printf("elsewhere %d %d %d\n", n, end, i) }
	od
}

init {
	byte d;
	atomic {
		for (d : 1 .. DRIVERS) { run Driver(d) }
		run World()
	}
}

#ifdef LIVENESS
ltl goes_on { <> (now.rows[RECORDS - 1] == 1) }
#endif
