--- Keeps chats in step with the daemon: its events, the turns of other clients, and restarts.
---
--- Knows chats by their methods only.

local text = require("ollm.text")
local turns = require("ollm.turn")

local M = {}

--- Shows the turn that runs in the session of a chat, if it is not one of the chat itself.
function M.join(chat)
  if chat.is_forgotten or chat.turn or chat.foreign or not chat:id() then
    return
  end
  local turn
  turn = turns.new(nil, vim.tbl_extend("force", chat:turn_hooks(), {
    accepted = function()
      -- The chat may have got a turn or another session meanwhile, or its buffer is gone.
      if chat.is_forgotten or chat.turn or (chat.foreign or turn) ~= turn or chat:id() ~= turn.session_id then
        return turn:leave()
      end
      chat.foreign = turn
      chat:update()
    end,
    recorded = function()
      chat:update()
    end,
    shown = function(kind, piece)
      -- A message that is being sent is shown in place of this answer until it is refused.
      if not chat.turn then
        chat:show_piece(kind, piece)
      end
    end,
    ended = function(err)
      if chat.foreign == turn then
        M.end_foreign(chat)
        if err and err.kind ~= "canceled" and err.kind ~= "closed" then
          chat:remark_error(err)
        end
        chat:update()
      end
    end,
  }))
  turn:join(chat:id())
end

--- Ends to show the turn of another client.
function M.end_foreign(chat)
  if chat.foreign then
    chat.foreign:leave()
    chat.foreign = nil
    chat:draw_bar()
  end
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
    M.join(chat)
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
  ["message-recorded"] = function(chat)
    -- The answer that is being shown ends with its turn.
    if not chat.foreign then
      update(chat)
    end
  end,
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
  ["turn-started"] = function(chat)
    if not chat.turn then
      chat.remarks = {}
      M.join(chat)
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
