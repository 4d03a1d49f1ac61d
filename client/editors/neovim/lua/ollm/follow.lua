--- Keeps chats in step with the daemon: its events, the turns of other clients, and restarts.
---
--- The answers to other clients are not streamed to this one. The daemon records what has arrived every second, which a
--- chat reads while such a turn runs. Knows chats by their methods only.

local text = require("ollm.text")
local transcript = require("ollm.transcript")

local M = {}

local uv = vim.uv

--- The time between two looks at the answer to another client, in milliseconds.
local FOREIGN_MS = 1000

--- Begins to show the turn of another client: what it has answered is in records of partial answers.
function M.begin_foreign(chat, model)
  if chat.foreign then
    return
  end
  chat.foreign = { model = model, thinking = "", answer = "" }
  chat.foreign.timer = uv.new_timer()
  chat.foreign.timer:start(FOREIGN_MS, FOREIGN_MS, vim.schedule_wrap(function()
    if chat.foreign then
      chat:update()
    end
  end))
  chat:update()
end

--- Ends to show the turn of another client.
function M.end_foreign(chat)
  if chat.foreign then
    chat.foreign.timer:stop()
    chat.foreign.timer:close()
    chat.foreign = nil
  end
end

--- Joins the partial answers behind the last message.
function M.collect_foreign(chat)
  if not chat.foreign then
    return
  end
  local thinking, answer = {}, {}
  for _, record in ipairs(chat.records) do
    local partial = transcript.partial(record)
    if record.type == "message" then
      thinking, answer = {}, {}
    elseif partial then
      thinking[#thinking + 1], answer[#answer + 1] = partial.thinking, partial.text
      chat.foreign.model = partial.model or chat.foreign.model
    end
  end
  chat.foreign.thinking, chat.foreign.answer = table.concat(thinking), table.concat(answer)
end

--- Reads everything again after events were lost, and says what changed, behind what happened.
local function resync(chat, happened)
  M.end_foreign(chat)
  if not chat.session then
    return chat:settle_unsure()
  end
  local before = { last = chat.records[#chat.records], title = chat.session.title }
  chat:reload(function(err)
    if err and err.kind == "sessionNotFound" and not before.last then
      -- A restart forgets drafts.
      chat.session = nil
      return chat:settle_unsure()
    elseif err then
      return chat:remark_error(err)
    end
    local last = chat.records[#chat.records]
    local words = {}
    local n_new = 0
    for _, record in ipairs(chat.records) do
      if record.type == "message" and record.seq > (before.last and before.last.seq or -1) then
        n_new = n_new + 1
      end
    end
    if n_new > 0 then
      words[#words + 1] = text.counted(n_new, "new message")
    elseif last and before.last and last.seq < before.last.seq then
      words[#words + 1] = "the conversation is at an earlier message"
    end
    if chat.session and chat.session.title ~= before.title then
      words[#words + 1] = "another title"
    end
    chat:remark(happened .. (#words > 0 and table.concat(words, ", ") or "nothing changed") .. ".")
    chat:settle_unsure()
  end)
end

--- Reads what was recorded; the end of a turn of this client reads it anyway.
local function update(chat)
  if not chat.turn then
    chat:update()
  end
end

--- The actions of a chat for the events of its session.
local HANDLERS = {
  ["message-recorded"] = update,
  ["tool-call-recorded"] = update,
  ["session-updated"] = update,
  ["mode-changed"] = update,
  ["goal-updated"] = update,
  ["branch-changed"] = function(chat)
    -- One event for each step: the state behind the last one is read once.
    if not chat.is_reload_planned then
      chat.is_reload_planned = true
      vim.schedule(function()
        chat.is_reload_planned = false
        chat:reload()
      end)
    end
  end,
  ["files-put-back"] = function()
    vim.cmd("silent! checktime")
  end,
  ["turn-started"] = function(chat, event)
    if not chat.turn then
      chat.remarks = {}
      M.begin_foreign(chat, event.data and event.data.model)
    end
  end,
  ["turn-ended"] = function(chat, event)
    if chat.foreign then
      M.end_foreign(chat)
      chat:draw_bar()
      if event.data and event.data.error then
        chat:remark_error({ message = event.data.error })
      end
      chat:update()
    end
  end,
  ["compression-progress"] = function(chat, event)
    local data = event.data or {}
    local detail = data.step
    if data.piece and data.pieces and data.pieces > 1 then
      detail = ("%s, part %d of %d"):format(detail, data.piece, data.pieces)
    end
    chat.compaction = { name = "compacting", detail = detail }
    chat:draw_bar()
  end,
  compressed = function(chat)
    chat.compaction = nil
    chat:update()
  end,
  ["compression-error"] = function(chat)
    chat.compaction = nil
    chat:draw_bar()
  end,
  ["session-deleted"] = function(chat)
    chat.session, chat.records, chat.status = nil, {}, nil
    -- What held for the session does not for the one that the next message begins.
    chat.from, chat.is_current = 0, nil
    M.end_foreign(chat)
    chat:remark("The session was deleted. The next message begins a new one.")
  end,
}

--- Handles an event of the daemon, or of the connection.
---@param chat ollm.Chat
---@param event table
function M.on_event(chat, event)
  if event.kind == "disconnected" then
    chat.problem = "no daemon"
    M.end_foreign(chat)
    chat:draw_bar()
  elseif event.kind == "connected" then
    chat.problem = nil
    chat:draw_bar()
  elseif event.kind == "resync" then
    resync(chat, "Connected again: ")
  elseif event.kind == "lagged" then
    resync(chat, "Events were missed: ")
  elseif event.kind == "subscription-failed" then
    chat:remark_error(event.error)
  elseif HANDLERS[event.kind] and event.sessionId and event.sessionId == chat:id() then
    HANDLERS[event.kind](chat, event)
  end
end

return M
